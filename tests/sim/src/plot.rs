//! Figures as a picture: what share of the requests waited at most how long, one line per group.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::figures::{Group, quantile};

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 40.0;
const COLORS: [&str; 6] = ["#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72", "#6940a5", "#64473a"];

/// Two panels: time to first token and gap between tokens, both on a logarithmic axis.
pub fn svg(title: &str, groups: &BTreeMap<String, Group>) -> String {
    let mut out = String::new();
    let total = HEIGHT * 2.0;
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{total}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"20\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    panel(&mut out, 0.0, "time to first token, ms", groups, |group| &group.ttft_ms);
    panel(&mut out, HEIGHT, "gap between tokens, ms", groups, |group| &group.gaps_ms);
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, y: f64, label: &str, groups: &BTreeMap<String, Group>, values: impl Fn(&Group) -> &[f64]) {
    let all = || groups.values().flat_map(|group| values(group).iter().copied());
    let least = all().fold(f64::INFINITY, f64::min).max(0.1);
    let most = all().fold(0.0, f64::max).max(least * 10.0);
    let (from, to) = (least.log10().floor(), most.log10().ceil());
    let (right, bottom) = (WIDTH - 140.0, y + HEIGHT - 40.0);
    let x_of = |ms: f64| LEFT + (ms.max(least).log10() - from) / (to - from) * (right - LEFT);
    let y_of = |share: f64| bottom - share * (bottom - y - TOP);
    for share in [0.0, 0.5, 0.95, 1.0] {
        let at = y_of(share);
        let _ = writeln!(out, "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>");
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{share}</text>", LEFT - 6.0, at + 4.0);
    }
    for power in from as i32..=to as i32 {
        let ms = 10f64.powi(power);
        let at = x_of(ms);
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{bottom}\" stroke=\"#eee\"/>",
            y + TOP
        );
        let _ = writeln!(out, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{ms}</text>", bottom + 16.0);
    }
    let _ = writeln!(out, "<text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", bottom + 32.0);
    for (n, (name, group)) in groups.iter().enumerate() {
        let color = COLORS[n % COLORS.len()];
        let sorted = values(group);
        if sorted.is_empty() {
            continue;
        }
        let points = (0..=200).map(|n| f64::from(n) / 200.0);
        let line: Vec<_> =
            points.map(|share| format!("{:.1},{:.1}", x_of(quantile(sorted, share)), y_of(share))).collect();
        let _ = writeln!(
            out,
            "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" points=\"{}\"/>",
            line.join(" ")
        );
        let at = y + TOP + 16.0 * n as f64;
        let _ =
            writeln!(out, "<text x=\"{:.1}\" y=\"{at:.1}\" fill=\"{color}\">{}</text>", right + 10.0, escaped(name));
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
