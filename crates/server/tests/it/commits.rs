//! commits
