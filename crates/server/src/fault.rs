//! What went wrong: a code for machines, one public sentence that we wrote, and the cause for the log.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use duck_contract::Code;
use duck_contract::query::WriteReport;

/// A request's failure. `api::problem` is the only place that turns one into HTTP.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Why, for machines.
    pub code: Code,
    /// Why, for people. Never names an endpoint, a bucket, a key, a path or another tenant.
    pub sentence: Cow<'static, str>,
    /// Where in the SQL, in characters from 0.
    pub position: Option<u32>,
    /// What became of the changes of whoever may make some.
    pub write: Option<Box<WriteReport>>,
    cause: Option<Arc<dyn Error + Send + Sync>>,
}

impl Fault {
    /// A failure in these words.
    pub fn new(code: Code, sentence: impl Into<Cow<'static, str>>) -> Self {
        Fault { code, sentence: sentence.into(), position: None, write: None, cause: None }
    }

    /// With what lies behind it, for the log.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.cause = Some(cause.into().into());
        self
    }

    /// The whole chain of causes, for the log.
    pub fn chain(&self) -> String {
        let mut text = String::new();
        let mut next: Option<&dyn Error> = self.cause.as_deref().map(|e| e as &dyn Error);
        while let Some(cause) = next {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.sentence)
    }
}

impl Error for Fault {}
