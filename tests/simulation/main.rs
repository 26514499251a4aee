//! The answer through Baton equals the uncut answer, wherever and however the first engine breaks. Pure: the relay and the
//! scripted engine's events, without a socket or a clock, so that every position can be tried.
//!
//! The two engines of a case differ in all that a client could see: name, `created`, response ids. What is expected is made
//! from the uncut answer of the first one, event by event and byte for byte; the few places where that cannot be are named in
//! [`compare`]. Which family can be continued on which engine is written down a second time, in [`table`]. That is from text;
//! [`by_ids`] goes on from token ids, where nothing may differ.

mod breaks;
mod by_ids;
mod case;
mod compare;
mod every_byte;
mod every_event;
mod legs;
mod mirror;
mod recorded;
mod restarted;
mod run;
mod shapes;
mod table;
mod tools;
