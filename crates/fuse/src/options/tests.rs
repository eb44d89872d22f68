use buttress::Discard;

use super::*;

fn parsed(list: &str) -> MountOptions {
    let mut options = MountOptions::default();
    options.apply(list).unwrap();
    options
}

fn refused(list: &str) -> OptionError {
    MountOptions::default().apply(list).unwrap_err()
}

#[test]
fn an_fstab_line_of_btrfs_is_understood() {
    let line = "defaults,noatime,space_cache=v2,subvolid=256,subvol=/@home,compress=no,\
                x-systemd.automount,nofail,_netdev,user=me,lazytime,relatime,noatime,commit=120,ssd,discard=async,\
                compress=zstd:3,autodefrag,thread_pool=4,max_inline=0,nossd,noautodefrag";
    let mut options = MountOptions::default();
    let idle = options.apply(line).unwrap();
    assert_eq!(options.subvolume, SubvolumeChoice::Path("/@home".into()));
    assert_eq!(options.access_times, AccessTimes::Never);
    assert_eq!(options.commit_seconds, Some(120));
    let hints = "lazytime,ssd,compress=zstd:3,autodefrag,thread_pool=4,max_inline=0,nossd";
    assert_eq!(idle.join(","), hints);
    assert_eq!(options.discard, Some(Discard::Async));
}

#[test]
fn the_last_word_wins() {
    assert!(parsed("rw,ro").read_only);
    assert!(!parsed("ro,rw").read_only);
    assert_eq!(parsed("noatime,strictatime").access_times, AccessTimes::Strict);
}

#[test]
fn quotas_are_marked_wrong_only_on_request() {
    assert!(parsed("mark_quota_inconsistent").mark_quota_inconsistent);
    assert!(parsed("strictopen").strict_open && !parsed("strictopen,nostrictopen").strict_open);
    assert!(!MountOptions::default().mark_quota_inconsistent);
}

#[test]
fn fakeroot_takes_the_kernels_checks_away() {
    let options = parsed("fakeroot,default_permissions,suid,dev");
    assert!(!options.default_permissions && !options.suid && !options.dev);
}

#[test]
fn values_are_checked() {
    assert_eq!(parsed("offset=1M").offset, 1 << 20);
    assert_eq!(parsed("offset=512").offset, 512);
    assert_eq!(parsed("subvolid=0").subvolume, SubvolumeChoice::Id(5));
    assert_eq!(parsed("uid=1000,gid=7").gid, Some(7));
    assert_eq!(parsed("memory=32M").memory, Some(32 << 20));
    assert_eq!(parsed("commit=600").commit_seconds, Some(600));
    assert_eq!(parsed("commit=600,commit=0").commit_seconds, None);
    for wrong in ["commit=-1", "commit=5s", "commit", "offset=x", "uid=-1", "subvol=", "ro=1"] {
        assert!(matches!(refused(wrong), OptionError::Value { .. }), "{wrong}");
    }
    assert_eq!(parsed("bg_reclaim_threshold=75").bg_reclaim_threshold, Some(75));
    assert!(refused("bg_reclaim_threshold=101").to_string().ends_with("0 to 100"));
    assert_eq!(parsed("discard=async,discard").discard, Some(Discard::Sync));
    assert_eq!(parsed("discard=sync,nodiscard").discard, None);
    assert!(parsed("skip_balance").skip_balance);
    assert!(refused("memory=31M").to_string().ends_with("32M or more"));
}

/// What has no effect here must make sense all the same: Linux refuses these lines of fstab.
#[test]
fn values_without_an_effect_are_checked() {
    for right in [
        "compress",
        "compress=lzo",
        "compress=zlib:9",
        "compress-force=zstd:-3",
        "space_cache",
        "space_cache=v1",
        "thread_pool=1",
        "metadata_ratio=0",
        "max_inline=2k",
        "device=/dev/sdb",
        "loop=/dev/loop0",
        "fragment=all",
        "fsname=a",
    ] {
        MountOptions::default().apply(right).unwrap();
    }
    for as_is in ["compress=no", "compress-force=none", "space_cache=v2", "fatal_errors=bug"] {
        assert!(MountOptions::default().apply(as_is).unwrap().is_empty(), "{as_is}");
    }
    for (wrong, expected) in [
        ("compress=nonsense", "expects zlib, lzo or zstd, each with :LEVEL or not, or no"),
        ("compress=", "expects zlib, lzo or zstd, each with :LEVEL or not, or no"),
        ("compress=zstd:best", "expects zlib, lzo or zstd, each with :LEVEL or not, or no"),
        ("compress-force=LZO", "expects zlib, lzo or zstd, each with :LEVEL or not, or no"),
        ("space_cache=v9", "expects v1 or v2"),
        ("discard=always", "expects sync or async"),
        ("thread_pool=0", "expects a number of threads"),
        ("thread_pool", "expects a number of threads"),
        ("metadata_ratio=x", "expects a number"),
        ("max_inline=", "expects bytes"),
        ("device", "expects a path"),
        ("fragment=some", "expects data, metadata or all"),
        ("fatal_errors=maybe", "expects bug"),
        ("ssd=1", "takes no value"),
        ("noautodefrag=1", "takes no value"),
        ("lazytime=yes", "takes no value"),
    ] {
        let error = refused(wrong).to_string();
        assert_eq!(error, format!("mount option `{wrong}`: {expected}"));
    }
}

#[test]
fn what_is_not_there_yet_is_refused_by_name() {
    for word in ["noacl", "fatal_errors=panic", "nosymfollow"] {
        assert_eq!(refused(word), OptionError::NotYet { word: word.to_owned() });
    }
}

#[test]
fn an_unknown_word_names_its_neighbours() {
    let error = refused("noatimes");
    assert_eq!(error.to_string(), "unknown mount option `noatimes`; did you mean `noatime`?");
    assert_eq!(refused("frobnicate").to_string(), "unknown mount option `frobnicate`");
    let OptionError::Unknown { near, .. } = refused("rp") else { panic!("known?") };
    assert!(near.contains(&"ro"));
}

#[test]
fn rescues() {
    let rescue = |options: &str| parsed(options).rescue;
    let some = rescue("ro,rescue=nologreplay:usebackuproot");
    assert_eq!(some, Rescue { no_log_replay: true, backup_root: true, ..Rescue::default() });
    assert_eq!(rescue("rescue=usebackupsuper"), Rescue { backup_super: true, ..Rescue::default() });
    for word in ["recovery", "usebackuproot"] {
        assert_eq!(rescue(word), Rescue { backup_root: true, ..Rescue::default() });
    }
    let error = refused("rescue=usebackupsuper:nonsense");
    assert!(matches!(error, OptionError::Value { .. }), "{error}");
    type Of = fn(&Rescue) -> bool;
    let words: [(&str, Of); 4] = [
        ("badroots", |it| it.ignore_bad_roots),
        ("datacsums", |it| it.ignore_data_sums),
        ("metacsums", |it| it.ignore_meta_sums),
        ("superflags", |it| it.ignore_super_flags),
    ];
    for (said, _) in words {
        for word in [format!("ignore{said}"), format!("i{said}")] {
            let options = rescue(&format!("ro,rescue=nologreplay:{word}"));
            assert!(options.no_log_replay && !options.backup_root);
            for (other, of) in words {
                assert_eq!(of(&options), said == other, "{word}, {other}");
            }
        }
    }
    let all = parsed("ro,rescue=all");
    let each = "rescue=ibadroots:idatacsums:imetacsums:isuperflags";
    assert_eq!(all, parsed(&format!("ro,usebackuproot,nologreplay,{each}")));
    assert!(!all.rescue.backup_super);
    assert!(refused("rescue=").to_string().contains("ignoredatacsums"));
}
