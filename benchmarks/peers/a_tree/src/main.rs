//! The a-tree crate on fieldfare's workloads: `a-tree-peer WORKLOAD SUBSCRIPTIONS EVENTS SECONDS`.
//!
//! Files and output are described in `../../run.py`. Events are built before the clock runs.

use a_tree::{ATree, AttributeDefinition, Event};
use std::fs::read_to_string;
use std::time::Instant;

const ATTRIBUTES: usize = 20;

fn name(attribute: usize) -> String {
    format!("a{attribute:02}")
}

fn expression(line: &str, is_range: bool) -> String {
    let fields: Vec<&str> = line.split('\t').collect();
    let predicates: Vec<String> = if is_range {
        let each = fields.chunks(3);
        each.map(|p| format!("{0} >= {1} and {0} <= {2}", p[0], p[1], p[2])).collect()
    } else {
        fields.chunks(2).map(|p| format!("{} = \"{}\"", p[0], p[1])).collect()
    };
    predicates.join(" and ")
}

fn event(tree: &ATree<u64>, line: &str, is_range: bool) -> Event {
    let mut builder = tree.make_event();
    for (attribute, value) in line.split('\t').enumerate() {
        if is_range {
            builder.with_integer(&name(attribute), value.parse().unwrap()).unwrap();
        } else {
            builder.with_string(&name(attribute), value).unwrap();
        }
    }
    builder.build().unwrap()
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let is_range = arguments[1] == "range";
    let subscriptions = read_to_string(&arguments[2]).unwrap();
    let lines = read_to_string(&arguments[3]).unwrap();
    let limit_s: f64 = arguments[4].parse().unwrap();

    let definitions: Vec<AttributeDefinition> = (0..ATTRIBUTES)
        .map(|a| if is_range { AttributeDefinition::integer(&name(a)) } else { AttributeDefinition::string(&name(a)) })
        .collect();
    let started = Instant::now();
    let mut tree = ATree::<u64>::new(&definitions).unwrap();
    for (id, line) in subscriptions.lines().enumerate() {
        let text = expression(line, is_range);
        tree.insert(&(id as u64), &text).unwrap();
    }
    let build_s = started.elapsed().as_secs_f64();

    let (mut counts, mut matches, mut elapsed_s) = (Vec::new(), 0usize, 0.0);
    for line in lines.lines() {
        let event = event(&tree, line, is_range);
        let started = Instant::now();
        let report = tree.search(&event).unwrap();
        let ids: Vec<u64> = report.matches().iter().map(|id| **id).collect();
        elapsed_s += started.elapsed().as_secs_f64();
        counts.push(ids.len());
        matches += ids.len();
        if elapsed_s > limit_s {
            break;
        }
    }
    let events = counts.len();
    counts.truncate(1000);
    println!(
        "{{\"build_s\": {build_s}, \"elapsed_s\": {elapsed_s}, \"events\": {events}, \"matches\": {matches}, \
         \"counts\": {counts:?}}}"
    );
}
