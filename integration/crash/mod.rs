//! `kill -9` under load, judged by the oracle: acknowledged events are debts.

mod kill_first;
