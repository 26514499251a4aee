//! Baton in front of a real vLLM: an answer that lost its engine is the answer that did not.
//!
//! `make test-vllm` sets vLLM up and runs these tests; `make test` builds them and leaves them out. Everything stays on loopback.
//!
//! Two ways to lose an engine. A server takes half a minute to start again, so for a cut at every tenth token a small TCP
//! [relay](relay) stands between Baton and the servers; it counts tokens and cuts the connection as a dying server would
//! ([sweeps]). And for a handful of places the servers themselves, which are the test's own children, are killed, stopped
//! and told to abort ([ends]). Every answer is compared with what the engine sends without Baton when nothing happens to it.
//!
//! | variable | meaning |
//! |---|---|
//! | `VLLM_WORK` | where `scripts/vllm/setup.sh` put everything; `target/vllm` |
//! | `BATON_VLLM_STEP` | the distance between two cuts of a sweep, in tokens; 10 |
//! | `BATON_VLLM_MEMO`, `_RAND`, `_ANY` | addresses of servers that are up, with a comma between, for the sweeps |
//! | `BATON_TEST_PYTHON` | the interpreter of the official client; `make` sets it |

mod answer;
mod client;
mod ends;
mod plans;
mod relay;
mod rig;
mod server;
mod sweep;
mod sweeps;
