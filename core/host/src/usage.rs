//! What this process has used of the machine, for the commands that measure.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time of a processor that all threads of this process have used.
pub fn process_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// How far this process's memory ever rose, in bytes; `None` where the system does not say.
pub fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows() {
        let before = process_cpu();
        let mut sum = 0_u64;
        while process_cpu() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(peak_rss_bytes().is_none_or(|bytes| bytes > 100_000));
    }
}
