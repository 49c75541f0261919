//! `relabel`: the stream goes on in the label named by `@label`.
//!
//! ```text
//! <match **>
//!   @type relabel
//!   @label @OUT
//! </match>
//! ```

use crate::params;

params! {
    /// `relabel`: the stream goes on in the label named by `@label`, its only parameter.
    pub struct RelabelParams {
    }
}
