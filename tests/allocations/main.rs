//! What the path of an event allocates, and what a whole answer costs in memory. In a binary of its own, because it counts in the
//! global allocator.

mod counting;
mod fold;
mod journal;
mod relay;
