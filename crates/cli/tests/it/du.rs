//! `filesystem du`: the text is that of btrfs-progs on a mount of the kernel, on images and on live mounts; and the page does in a browser
//! what it says.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::below::{lines, made_by_kernel, said, same_lines, tool};
use crate::live::Live;
use crate::run::{Place, Said};

/// What a target can be, and what can be in it.
fn fill(top: &Path) {
    for directory in ["dir", "dir/empty", "dir/deep"] {
        std::fs::create_dir(top.join(directory)).unwrap();
    }
    for line in [
        "btrfs subvolume create dir/nested",
        "btrfs subvolume create dir/nested/inner",
        "cp --reflink=always sv/noise dir/nested/inner/b",
        "cp sv/noise dir/nested/inner/a",
        "cp --reflink=always dir/nested/inner/a dir/again",
        "ln dir/again dir/deep/hard",
        "ln dir/again hard",
        "ln -s deep dir/link",
        "ln -s nowhere dangling",
        "mkfifo pipe",
        "mknod zero c 1 5",
        "fallocate -l 300k dir/reserved",
        "truncate -s 1M dir/hole",
        "fallocate -z -o 8192 -l 20k dir/hole",
        "btrfs subvolume snapshot -r dir/nested dir/before",
        "btrfs filesystem sync .",
        "cp sv/dir/plain-large dir/nested/inner/later",
    ] {
        said(top, line);
    }
    let hole = OpenOptions::new().write(true).open(top.join("dir/hole")).unwrap();
    hole.write_all_at(&[7; 5000], 500_000).unwrap();
    // One extent that a file has twice.
    std::fs::write(top.join("dir/twice"), [7; 65536]).unwrap();
    let twice = OpenOptions::new().read(true).write(true).open(top.join("dir/twice")).unwrap();
    twice.sync_all().unwrap();
    let (mut from, mut to) = (0, 65536);
    rustix::fs::copy_file_range(&twice, Some(&mut from), &twice, Some(&mut to), 65536).unwrap();
    std::fs::write(top.join("dir").join(OsStr::from_bytes(b"no \xff text")), [7; 9000]).unwrap();
    said(top, "btrfs filesystem sync .");
}

const LINES: [&str; 20] = [
    "@.",
    "-s @.",
    "--summarize --raw @sv @snap @dir",
    "--raw @dir",
    "@dir/",
    "@sv/noise @sv/noise @dir/deep/hard",
    "@dir/nested @dir/nested/inner @dir/before",
    "@dir/link @dir/empty @dir/hole",
    "@dir/twice",
    "@pipe @zero",
    "@missing @sv/dir @dangling",
    "@missing",
    "--kbytes @dir",
    "--mbytes -s @dir @sv",
    "--gbytes -s @dir",
    "--tbytes -s @dir",
    "--si @dir",
    "--iec -s @sv",
    "--si --kbytes -s @sv",
    "--human-readable -s @snap",
];

/// Standard output and the exit code, whatever they are.
fn answer(said: Said) -> (String, i32) {
    (said.text(), said.code)
}

#[test]
fn text_is_that_of_btrfs_progs() {
    for options in ["", "-O ^no-holes", "ours -O block-group-tree -n 4096"] {
        let Some((place, mount)) = made_by_kernel(options) else { return };
        fill(mount.path());
        let theirs = |line: &&str| {
            answer(tool(mount.path(), &format!("btrfs filesystem du {}", lines(line, "").0)))
        };
        let theirs: Vec<_> = LINES.iter().map(theirs).collect();
        drop(mount);
        let same = |prefix: &str| {
            for (line, (theirs, code)) in LINES.iter().zip(&theirs) {
                let (_, words) = lines(line, prefix);
                let (ours, our_code) = answer(place.run(&format!("filesystem du {words}")));
                same_lines(line, &without(prefix, &ours), &without("./", theirs));
                assert_eq!(our_code, *code, "{options} {line}");
            }
        };
        same("disk.img:/");
        let Some(live) = Live::of(&place, "-o ro") else { return };
        same("mnt/");
        live.end();
    }
}

/// Rows with their paths from the top on.
fn without(prefix: &str, text: &str) -> String {
    let row = |line: &str| {
        let (sizes, path) = line.rsplit_once("  ").unwrap();
        let path = path.strip_prefix(prefix).unwrap_or(path);
        let path = if matches!(path, "" | ".") { "(top)" } else { path };
        format!("{sizes}  {path}\n")
    };
    text.lines().map(row).collect()
}

/// A place with an image that has clones, a snapshot and names of all kinds.
fn image() -> Place {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    for directory in ["tree", "tree/small", "tree/large"] {
        std::fs::create_dir(place.join(directory)).unwrap();
    }
    for (name, len) in [
        (&b"large/one"[..], 500_000),
        (b"large/two", 300_000),
        (b"small/needle", 9000),
        (b"small/<script>document.title=1<!--", 8192),
        (b"small/no \xff text", 5000),
        (b"inline", 10),
    ] {
        let path = place.join("tree").join(OsStr::from_bytes(name));
        std::fs::write(path, vec![7; len]).unwrap();
    }
    place.ok("subvolume create -q disk.img:/sv");
    place.ok("cp -r tree/large disk.img:/sv");
    place.ok("cp -r tree/small disk.img:/");
    place.ok("cp tree/inline disk.img:/");
    place.ok("subvolume snapshot -q disk.img:/sv disk.img:/snap");
    place
}

#[test]
fn rows_as_json() {
    let place = image();
    let found = place.json("filesystem du disk.img:/sv");
    let row = |path: &str, kind: &str, total: u64, set: Value| {
        json!({
            "path": format!("disk.img:/{path}"), "type": kind, "total": total, "exclusive": 0,
            "set_shared": set,
        })
    };
    let (one, two) = (503_808, 303_104);
    let expected = json!([
        row("sv/large/one", "file", one, Value::Null),
        row("sv/large/two", "file", two, Value::Null),
        row("sv/large", "directory", one + two, Value::Null),
        row("sv", "subvolume", one + two, json!(one + two)),
    ]);
    assert_eq!(found, expected);
    let small = place.json("filesystem du disk.img:/small");
    let bad = small.as_array().unwrap().iter().find(|it| it["path_hex"].is_string()).unwrap();
    assert_eq!((&bad["total"], &bad["exclusive"]), (&json!(8192), &json!(8192)));
    let said = place.run("--format json filesystem du disk.img:/missing");
    assert_eq!((said.code, said.text().as_str()), (1, ""));
}

/// What is written and not on the disk yet counts.
#[test]
fn a_live_mount_tells_what_was_just_written() {
    let place = Place::new();
    place.ok("mkfs -q --size 300M disk.img");
    let Some(live) = Live::of(&place, "") else { return };
    std::fs::write(place.join("mnt/file"), vec![7; 100_000]).unwrap();
    File::create(place.join("mnt/file2")).unwrap().write_all_at(&[7; 5000], 1 << 20).unwrap();
    let expected = "     Total   Exclusive  Set shared  Filename
    102400      102400           -  mnt/file
      8192        8192           -  mnt/file2
    110592      110592           0  mnt
";
    assert_eq!(place.ok("filesystem du --raw mnt"), expected);
    live.end();
}

/// The data of a page.
fn data(html: &str) -> Value {
    let (_, rest) = html.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn the_page_has_what_was_measured() {
    let place = image();
    let sums = place.ok("filesystem du --html page.html disk.img:/sv disk.img:/small");
    assert_eq!(sums, place.ok("filesystem du -s disk.img:/sv disk.img:/small"));
    let html = std::fs::read_to_string(place.join("page.html")).unwrap();
    let expected = json!({
        "unit": 4096,
        "set": [0, 197],
        "kind": "dfffsdff",
        "depth": [0, 1, 1, 1, 0, 1, 2, 2],
        "name": [
            "disk.img:/small", "'no '$'\\377'' text'", "needle", "<script>document.title=1<!--",
            "disk.img:/sv", "large", "two", "one",
        ],
        "total": [7, 2, 3, 2, 197, 197, 74, 123],
        "shared": [0, 0, 0, 0, 197, 197, 74, 123],
    });
    assert_eq!(data(&html), expected);
    assert!(!html.contains("<script>document"));
}

/// A page replaces what it was before, and nothing else: no image, and nothing at all where there is nothing to show.
#[test]
fn the_page_goes_where_it_may() {
    let place = image();
    std::fs::write(place.join("page.html"), "x".repeat(1 << 20)).unwrap();
    place.ok("filesystem du --html page.html disk.img:/small");
    let html = std::fs::read_to_string(place.join("page.html")).unwrap();
    assert!(html.ends_with("</html>\n"));
    place.fails("filesystem du --html page.html disk.img:/missing");
    assert_eq!(std::fs::read_to_string(place.join("page.html")).unwrap(), html);
    place.fails("filesystem du --html new.html disk.img:/missing");
    assert!(!place.join("new.html").exists());
    for file in ["disk.img", "disk.img:/page.html", "missing/page.html", "/dev/null"] {
        let said = place.fails(&format!("filesystem du --html {file} disk.img:/small"));
        assert!(said.contains(file), "{said}");
    }
    place.ok("check disk.img");
}

/// A page as a browser has made it of the file; `None`, with the reason printed, where there is no browser.
fn in_a_browser(place: &Place, page: &str) -> Option<String> {
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    let output = browsers.iter().find_map(|browser| {
        let mut command = Command::new(browser);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,800"]);
        command.arg(format!("--user-data-dir={}", place.join("profile").display()));
        command.args(["--dump-dom"]).arg(format!("file://{}", place.join(page).display()));
        command.output().ok()
    });
    let Some(output) = output else {
        println!("skipped: chromium is not installed");
        return None;
    };
    let said = Said::of(output);
    assert_eq!(said.code, 0, "{}", said.err);
    Some(said.text())
}

/// With the policy that the page has of itself.
#[test]
fn a_browser_draws_the_page() {
    let place = image();
    place.ok("filesystem du --html page.html disk.img:");
    let Some(dom) = in_a_browser(&place, "page.html") else { return };
    assert!(dom.contains("<title>Disk usage of disk.img:/</title>"));
    // Four cells for what is at the top, and others for what is in them; rows of the table.
    assert_eq!(dom.matches("<button class=\"cell").count(), 4, "{dom}");
    assert!(dom.matches("<div class=\"cell").count() >= 6, "{dom}");
    assert!(dom.contains("aria-label=\"snap, subvolume, 788.00 KiB, all shared\""));
    assert!(dom.contains("aria-label=\"small, directory, 28.00 KiB, nothing shared\""));
    assert!(dom.contains("<caption id=\"caption\">4 entries in disk.img:/</caption>"));
    place.ok("filesystem du --html small.html disk.img:/small");
    let Some(dom) = in_a_browser(&place, "small.html") else { return };
    assert!(dom.contains("<title>Disk usage of disk.img:/small</title>"));
    assert_eq!(dom.matches("<button class=\"cell").count(), 3, "{dom}");
    assert!(dom.contains("<th scope=\"row\">&lt;script&gt;document.title=1&lt;!--</th>"), "{dom}");
    assert!(dom.contains(r"'no '$'\377'' text'"), "{dom}");
}

/// What a page says to somebody who goes about in it by keys.
#[test]
fn the_page_needs_no_mouse() {
    let place = image();
    place.ok("filesystem du --html page.html disk.img:");
    let html = std::fs::read_to_string(place.join("page.html")).unwrap();
    let allowed = html.lines().filter(|line| !line.contains("Content-Security-Policy"));
    let allowed = allowed.collect::<Vec<_>>().join("\n");
    let keys = format!("<script>{}</script></body>", include_str!("du_keys.js"));
    std::fs::write(place.join("keys.html"), allowed.replace("</body>", &keys)).unwrap();
    let Some(dom) = in_a_browser(&place, "keys.html") else { return };
    let heard = dom.split_once("<pre id=\"heard\">").expect(&dom).1.split_once("</pre>").unwrap().0;
    let heard = heard.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let heard: Value = serde_json::from_str(&heard).unwrap();
    let (snap, sv) =
        ("snap, subvolume, 788.00 KiB, all shared", "sv, subvolume, 788.00 KiB, all shared");
    let small = "small, directory, 28.00 KiB, nothing shared";
    let rest = "1 more, not to scale, 0 B";
    let large = "large, directory, 788.00 KiB, all shared";
    let needle = "needle, file, 12.00 KiB, nothing shared";
    let expected = json!([
        ["begin", sv],
        ["ArrowRight", snap],
        ["ArrowDown", small],
        ["ArrowLeft", snap],
        ["End", rest],
        ["Home", sv],
        ["enter", large],
        ["Escape", sv],
        ["/", "search"],
        ["Enter", needle],
        ["where", "disk.img:/small"],
        ["Backspace", small],
        ["/", "search"],
        ["ArrowDown", "search"],
        ["table", "0 entries with “nothing has this name” in the name"],
        ["Escape", sv],
        ["exclusive", format!("{small}; 3 more, not to scale, 1.54 MiB")],
    ]);
    assert_eq!(heard, expected);
}
