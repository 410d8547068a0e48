//! A node that requires a token. A proxy before the node requires it, so that the page alone is tested.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use vipwatch_testkit::Lab;

use crate::support::{ENTER, Page, instance, node_with_instances, web_address};

const TOKEN: &str = "a-token-of-this-test";

/// Starts a proxy that answers requests for `/v1/` without the token with 401.
fn start_proxy(node: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || serve(client, node));
        }
    });
    address
}

/// Serves one request, then closes the connection.
fn serve(mut client: TcpStream, node: SocketAddr) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match client.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let is_permitted =
        head.to_ascii_lowercase().contains(&format!("authorization: bearer {TOKEN}"));
    if head.contains(" /v1/") && !is_permitted {
        let body = r#"{"code":"unauthorized","status":401,"detail":"a token is needed"}"#;
        let answer = format!(
            "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
             connection: close\r\n\r\n{body}",
            body.len()
        );
        let _ = client.write_all(answer.as_bytes());
        let _ = client.shutdown(Shutdown::Write);
        return;
    }
    let Ok(mut upstream) = TcpStream::connect(node) else { return };
    let head = head.replace("Connection: keep-alive", "Connection: close");
    if upstream.write_all(head.as_bytes()).is_ok() {
        let _ = std::io::copy(&mut upstream, &mut client);
    }
}

#[test]
fn a_page_that_is_not_permitted_asks_for_the_token_and_keeps_it_in_its_tab() {
    let lab = Lab::new();
    let (netns, fixture) = node_with_instances(&lab, &instance("VI_1", 1, "eth0", "192.0.2.9/24"));
    let _node = fixture.start();
    let page = Page::open_before_live(start_proxy(web_address(&fixture)), "#/");
    page.wait_for_text("#link-text", "token needed");
    page.wait_for_content("This node requires a token");
    let enter = |token: &str| {
        page.wait_for("the form", "document.querySelector('#token')");
        page.browser.run("document.querySelector('#token').focus()");
        page.browser.press(&format!("{token}{ENTER}"));
    };
    enter("wrong");
    page.wait_for_content("The node rejects this token");
    enter(TOKEN);
    page.wait_for_text("#link-text", "live");
    page.wait_for_text(".total", "1 instance");
    assert_eq!(page.browser.count("#token-form"), 0);
    page.browser.reload();
    page.wait_for_text("#link-text", "live");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    page.wait_for_text(".tile[data-role=primary] .tile-number", "1");
    let stored = page.browser.run("return [sessionStorage.length, localStorage.length, document.cookie, location.href.includes('token')]");
    assert_eq!(stored.to_string(), "[1,0,\"\",false]");
    // The browser reports each 401 in its console.
    page.close_after_errors();
}
