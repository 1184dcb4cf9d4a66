//! `GET /ui`: a page that shows the server and talks to its models. It holds no data: what it shows it asks the other
//! routes for, with the reader's own key.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

const PAGE: &str = include_str!("../ui/index.html");
const STYLE: &str = include_str!("../ui/style.css");
const SCRIPT: &str = include_str!("../ui/app.js");

/// Nothing but the page's own two files and this server's routes: a text that got to be markup all the same could load
/// and send nothing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub async fn page() -> Response {
    file("text/html; charset=utf-8", PAGE)
}

pub async fn style() -> Response {
    file("text/css; charset=utf-8", STYLE)
}

pub async fn script() -> Response {
    file("text/javascript; charset=utf-8", SCRIPT)
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &'static str); 5] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the server has another page.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers.map(|(name, value)| (name, HeaderValue::from_static(value))), text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts of models and plugins become texts of elements; nothing reads them as markup or as code.
    #[test]
    fn the_script_builds_no_markup() {
        for word in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"]
        {
            assert!(!SCRIPT.contains(word), "{word}");
        }
    }

    /// The page works without a network: every address in it is this server's own.
    #[test]
    fn nothing_is_fetched_from_elsewhere() {
        let known = ["http://www.w3.org/2000/svg"];
        for (name, text) in [("index.html", PAGE), ("style.css", STYLE), ("app.js", SCRIPT)] {
            let text = known.iter().fold(text.to_owned(), |text, known| text.replace(known, ""));
            assert!(!text.contains("http://") && !text.contains("https://"), "{name} names an address");
            assert!(!text.contains("@import") && !text.contains("url("), "{name}");
        }
        assert!(!PAGE.contains("onclick") && !PAGE.contains("<script>") && !PAGE.contains("style="));
    }
}
