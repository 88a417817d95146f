//! `cards`: says what a SIMT machine would do with kernels, without a card.
mod bench;
mod collect;
mod instrument;
#[cfg(test)]
mod known;
mod memory;
mod roofline;
mod trace;

use clap::{Parser, ValueEnum};

#[derive(Parser)]
struct Args {
    #[arg(long, value_delimiter = ',')]
    workload: Vec<bench::Workload>,
}

fn main() {
    let args = Args::parse();
    let _ = bench::Workload::value_variants();
    let kernels = collect::kernels("soft:0", &args.workload).unwrap();
    for k in kernels {
        match &k.figures {
            Ok(f) => {
                let [a, b] = f.requests;
                print!("{} {:?} {:?}: used {:.0}/{:.0}% lanes {:.0}/{:.0}% excess {:.2} once {:.2} conflicts {:.2} cut {} |", k.name, k.groups, k.launches.values().next(),
                    100.0*a.efficiency(), 100.0*b.efficiency(), 100.0*a.lanes(32), 100.0*b.lanes(64), f.excess(), f.once / f.least, f.conflicts(), f.cut);
                for c in &roofline::CARDS { let p = c.predict(f); print!(" {:.1}/{:.0}{}", p.seconds * 1e6, p.share * 100.0, p.limit.letter()); }
                println!();
            }
            Err(e) => println!("{} {:?}: {e}", k.name, k.groups),
        }
    }
}
