//! Tests of the pool's pages.

use super::{affine, on_each_alone};
use crate::error::Result;

#[test]
fn an_upload_does_not_overtake_a_recorded_kernel() {
    on_each_alone(5, |_, gpu| {
        let old = gpu.upload(&[1; 500])?;
        let out = gpu.alloc(500)?;
        gpu.run(affine(&old, &out, 1, 0))?;
        // The page returns to the pool, and the next upload of its class gets it before the kernel is submitted.
        let page = old.page().id;
        drop(old);
        let new = gpu.upload(&[2; 500])?;
        assert_eq!(new.page().id, page, "the pool did not recycle: this test tests nothing");
        gpu.write(&new, 3, &[7])?;
        let out_new = gpu.alloc(500)?;
        gpu.run(affine(&new, &out_new, 10, 0))?;
        gpu.write(&new, 4, &[9])?;
        assert_eq!(gpu.download(&out, 0, 500)?, [1; 500]);
        assert_eq!(gpu.download(&out_new, 2, 3)?, [20, 70, 20]);
        assert_eq!(gpu.download(&new, 3, 2)?, [7, 9]);
        Ok(())
    });
}

#[test]
fn freed_buffers_are_used_again_and_counted() {
    on_each_alone(6, |device, gpu| {
        let before = device.memory();
        let buffer = gpu.alloc(70_001)?;
        let held = device.memory();
        assert!(held.live >= before.live + 280_004 && held.peak >= held.live && held.reserved >= held.live);
        let page = buffer.page().id;
        drop(buffer);
        assert_eq!(gpu.alloc(70_002)?.page().id, page);
        assert_eq!(device.memory().live, before.live);
        assert!(gpu.alloc(0)?.len() == 0 && gpu.download(&gpu.alloc(0)?, 0, 0)?.is_empty());
        Ok(())
    });
}

#[test]
fn small_pages_of_many_bind_groups_are_renewed() {
    on_each_alone(9, |_, gpu| {
        let sources = (0..200).map(|i| gpu.upload(&[i; 100])).collect::<Result<Vec<_>>>()?;
        let page_after = |i: usize| {
            let y = gpu.alloc(100)?;
            gpu.run(affine(&sources[i], &y, 2, 1))?;
            assert!(!i.is_multiple_of(25) || gpu.download(&y, 0, 100)? == [2 * i as u32 + 1; 100]);
            Ok(y.page().id)
        };
        let pages = (0..200).chain([7; 200]).map(page_after).collect::<Result<Vec<_>>>()?;
        assert!(pages[..200].chunk_by(|a, b| a == b).all(|same| same.len() <= 64), "{pages:?}");
        assert!(pages[0] != pages[199] && pages[200..].iter().all(|page| *page == pages[200]), "{pages:?}");
        Ok(())
    });
}
