// SPDX-License-Identifier: Apache-2.0
//! The dashboard: a page with its style sheets and modules, which are embedded in the program.
//!
//! These routes are not part of the API: they have no document and no state of the node. The page reads everything from
//! the API, so that its files need no permission.

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use vipwatch_api::{ErrorCode, ProblemDocument};

use crate::reply;

/// An embedded file.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Embeds a file of `crates/web/dashboard`.
macro_rules! asset {
    ($name:literal, $content_type:expr) => {
        Asset {
            name: $name,
            content_type: $content_type,
            bytes: include_bytes!(concat!("../../dashboard/", $name)),
        }
    };
}

const PAGE: Asset = asset!("index.html", HTML);
const ICON: Asset = asset!("favicon.svg", SVG);

/// The files below `/assets/`.
const ASSETS: &[Asset] = &[
    asset!("attention.js", SCRIPT),
    asset!("batch.js", SCRIPT),
    asset!("clock.js", SCRIPT),
    asset!("cluster-feed.js", SCRIPT),
    asset!("cluster-store.js", SCRIPT),
    asset!("cluster-table.js", SCRIPT),
    asset!("cluster.js", SCRIPT),
    asset!("dom.js", SCRIPT),
    asset!("findings.js", SCRIPT),
    asset!("format.js", SCRIPT),
    asset!("frames.js", SCRIPT),
    asset!("history-rows.js", SCRIPT),
    asset!("history.js", SCRIPT),
    asset!("instance-panels.js", SCRIPT),
    asset!("instance-table.js", SCRIPT),
    asset!("instance.js", SCRIPT),
    asset!("link.js", SCRIPT),
    asset!("main.js", SCRIPT),
    asset!("map.js", SCRIPT),
    asset!("outages.js", SCRIPT),
    asset!("overview.js", SCRIPT),
    asset!("request.js", SCRIPT),
    asset!("roles.js", SCRIPT),
    asset!("route.js", SCRIPT),
    asset!("sse.js", SCRIPT),
    asset!("stopwatch.js", SCRIPT),
    asset!("store.js", SCRIPT),
    asset!("style.css", CSS),
    asset!("theme.js", SCRIPT),
    asset!("timeline.js", SCRIPT),
    asset!("transition-log.js", SCRIPT),
    asset!("views.css", CSS),
    asset!("virtual.js", SCRIPT),
    asset!("worker.js", SCRIPT),
];

/// The routes of the dashboard.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/", get(async |headers: HeaderMap| answer(&PAGE, &headers)))
        .route("/favicon.svg", get(async |headers: HeaderMap| answer(&ICON, &headers)))
        .route("/assets/{name}", get(asset))
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    if let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) {
        return answer(asset, &headers);
    }
    let name: String = name.chars().take(80).collect();
    let detail = format!("the dashboard has no file {name:?}");
    let hint = "reload the page: it may belong to another version of vipwatch";
    reply::problem(&ProblemDocument::new(ErrorCode::UnknownRoute, detail).with_hint(hint))
}

/// The file, or 304 if the browser has this version of it.
fn answer(asset: &Asset, request: &HeaderMap) -> Response {
    let tag = format!("\"{:016x}\"", content_hash(asset.bytes));
    let known = request.get_all(header::IF_NONE_MATCH).iter();
    let mut known = known.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    let is_known = known.any(|one| one.trim().trim_start_matches("W/") == tag);
    let (status, body) = if is_known {
        (StatusCode::NOT_MODIFIED, Body::empty())
    } else {
        (StatusCode::OK, Body::from(asset.bytes))
    };
    let content_type = HeaderValue::from_static(asset.content_type);
    let mut response = reply::response(status, content_type, body);
    let headers = response.headers_mut();
    // The browser keeps the file, and asks each time whether it has changed: after an upgrade of the node, the page and
    // its modules are of one version.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

/// FNV-1a: it only has to differ between versions of a file.
fn content_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::extract::Request;
    use http_body_util::BodyExt;
    use tower_service::Service;

    use super::*;

    async fn get(path: &str, tag: Option<&str>) -> Response {
        let mut request = Request::builder().uri(path);
        if let Some(tag) = tag {
            request = request.header(header::IF_NONE_MATCH, tag);
        }
        router().call(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    fn header_of(response: &Response, name: header::HeaderName) -> &str {
        response.headers().get(name).unwrap().to_str().unwrap()
    }

    #[tokio::test]
    async fn every_file_of_the_directory_is_served_with_its_type() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard");
        let entries = std::fs::read_dir(directory).unwrap();
        let names: BTreeSet<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        for name in names {
            let (path, expected) = match name.rsplit_once('.').unwrap() {
                ("index", "html") => ("/".to_owned(), HTML),
                ("favicon", "svg") => ("/favicon.svg".to_owned(), SVG),
                (_, "css") => (format!("/assets/{name}"), CSS),
                (_, "js") => (format!("/assets/{name}"), SCRIPT),
                other => panic!("no type for {other:?}"),
            };
            let response = get(&path, None).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(header_of(&response, header::CONTENT_TYPE), expected, "{path}");
            assert_eq!(header_of(&response, header::CACHE_CONTROL), "no-cache", "{path}");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let file = std::fs::read(format!("{directory}/{name}")).unwrap();
            assert_eq!(*body, *file, "{path}");
        }
    }

    #[tokio::test]
    async fn a_browser_that_has_the_file_does_not_get_it_again() {
        let first = get("/", None).await;
        let tag = header_of(&first, header::ETAG).to_owned();
        for known in [tag.clone(), format!("W/{tag}"), format!("\"old\", {tag}")] {
            let again = get("/", Some(&known)).await;
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{known}");
            assert_eq!(header_of(&again, header::ETAG), tag);
            assert!(again.into_body().collect().await.unwrap().to_bytes().is_empty());
        }
        assert_eq!(get("/", Some("\"old\"")).await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_file_that_does_not_exist_is_a_problem_document() {
        for path in ["/assets/unknown.js", "/assets/..%2Findex.html", "/assets/index.html"] {
            let response = get(path, None).await;
            assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
            assert_eq!(header_of(&response, header::CONTENT_TYPE), "application/problem+json");
        }
    }

    /// The content security policy forbids these, and the page would not work.
    #[test]
    fn the_page_has_no_inline_script_no_inline_style_and_no_other_host() {
        for asset in ASSETS.iter().chain([&PAGE, &ICON]) {
            let text = std::str::from_utf8(asset.bytes).unwrap();
            let text = text.replace("http://www.w3.org/2000/svg", "");
            for forbidden in [
                "style=\"",
                "<style",
                "onclick=",
                "innerHTML",
                "outerHTML",
                "eval(",
                "://",
                "@import",
            ] {
                assert!(!text.contains(forbidden), "{}: {forbidden}", asset.name);
            }
        }
    }
}
