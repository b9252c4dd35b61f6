//! Pages of a listing. A token is the last name of the page before, so names may come and go between pages.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use crate::refusal::Refusal;

/// As many as Lakekeeper gives to a client that asks for pages without saying how large.
pub(super) const SIZE_DEFAULT: usize = 100;
/// The largest page, and what a client gets that does not ask for pages.
const SIZE_MAX: usize = 1000;

/// The words by which a client asks for a page.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Asked {
    page_token: Option<String>,
    page_size: Option<usize>,
    /// Only for namespaces: whose children.
    pub(super) parent: Option<String>,
}

/// Names after `after`, at most `size`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) after: String,
    pub(super) size: usize,
}

impl Asked {
    pub(super) fn page(&self) -> Result<Page, Refusal> {
        let token = self.page_token.as_deref().filter(|token| !token.is_empty());
        let after = match token {
            None => String::new(),
            Some(token) => URL_SAFE_NO_PAD
                .decode(token)
                .ok()
                .and_then(|name| String::from_utf8(name).ok())
                .ok_or_else(|| Refusal::bad_request("that page token is not one of ours"))?,
        };
        let usual = if self.page_token.is_some() { SIZE_DEFAULT } else { SIZE_MAX };
        Ok(Page { after, size: self.page_size.unwrap_or(usual).clamp(1, SIZE_MAX) })
    }
}

impl Page {
    /// Cuts what was listed, one more than the page's size, down to the page; the token leads to the next one.
    pub(super) fn cut(&self, mut names: Vec<String>) -> (Vec<String>, Option<String>) {
        let more = names.len() > self.size;
        names.truncate(self.size);
        let token = names.last().filter(|_| more).map(|last| URL_SAFE_NO_PAD.encode(last));
        (names, token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(token: Option<&str>, page_size: Option<usize>) -> Asked {
        Asked { page_token: token.map(str::to_owned), page_size, parent: None }
    }

    #[test]
    fn a_token_leads_on_from_the_last_name() {
        let page = asked(None, Some(2)).page().unwrap();
        let names = ["a", "b\u{1f}ü", "c"].map(str::to_owned).to_vec();
        let (names, token) = page.cut(names);
        assert_eq!(names, ["a", "b\u{1f}ü"]);
        let next = asked(token.as_deref(), Some(2)).page().unwrap();
        assert_eq!(next, Page { after: "b\u{1f}ü".to_owned(), size: 2 });
        assert_eq!(next.cut(vec!["c".to_owned()]), (vec!["c".to_owned()], None));
    }

    #[test]
    fn a_page_has_a_size_whatever_was_asked() {
        assert_eq!(asked(None, None).page().unwrap().size, SIZE_MAX);
        assert_eq!(asked(Some(""), None).page().unwrap().size, SIZE_DEFAULT);
        assert_eq!(asked(None, Some(0)).page().unwrap().size, 1);
        assert_eq!(asked(None, Some(usize::MAX)).page().unwrap().size, SIZE_MAX);
    }

    #[test]
    fn a_made_up_token_is_refused() {
        assert_eq!(asked(Some("!"), None).page().unwrap_err().status.as_u16(), 400);
        assert_eq!(asked(Some("_w"), None).page().unwrap_err().status.as_u16(), 400);
    }
}
