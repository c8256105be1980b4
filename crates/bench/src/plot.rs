//! Pictures of the results: bars that compare clients, and lines that show how a cost grows.

use std::collections::BTreeMap;

use plotters::prelude::*;

use crate::Outcome;
use crate::table::{Row, number};

/// Stand for colours that the style sheet replaces, so that a picture suits light and dark pages.
const INK: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(2, 2, 2);
const OURS: RGBColor = RGBColor(3, 3, 3);
const PEER: RGBColor = RGBColor(4, 4, 4);
const LIMIT: RGBColor = RGBColor(5, 5, 5);

/// Colours in light and dark for what [`plotters`] has drawn.
pub(crate) const STYLE: &str = include_str!("plot.css");

/// A picture, with a name for its file.
pub(crate) struct Picture {
    pub(crate) engine: String,
    pub(crate) file: String,
    pub(crate) svg: String,
}

/// All pictures of these rows, in their order.
pub(crate) fn pictures(rows: &[Row]) -> Outcome<Vec<Picture>> {
    let mut pictures = Vec::new();
    let mut plots: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        if let Some(point) = &row.point {
            plots.entry(&point.plot).or_default().push(row);
        }
    }
    for (title, rows) in plots {
        let svg = draw(title, (640, 330), |root| lines(root, title, &rows))?;
        pictures.push(picture(rows[0], title, svg));
    }
    for row in rows.iter().filter(|row| !row.peers.is_empty()) {
        let height = 64 + 26 * (1 + row.peers.len() + usize::from(row.limit.is_some()));
        let svg = draw(&row.what, (640, height as u32), |root| bars(root, row))?;
        pictures.push(picture(row, &row.what, svg));
    }
    Ok(pictures)
}

fn picture(row: &Row, title: &str, svg: String) -> Picture {
    let words = title.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<String> =
        words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect();
    Picture { engine: row.engine().to_owned(), file: format!("{}.svg", words.join("-")), svg }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(
    title: &str,
    size: (u32, u32),
    content: impl FnOnce(&Area<'_>) -> Outcome<()>,
) -> Outcome<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        content(&root)?;
        root.present()?;
    }
    let title = escape(title);
    let named = format!("role=\"img\" aria-label=\"{title}\" xmlns=");
    Ok(svg.replacen("xmlns=", &named, 1))
}

/// How a cost grows, both axes logarithmic.
fn lines(root: &Area<'_>, title: &str, rows: &[&Row]) -> Outcome<()> {
    let places = |value: &dyn Fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
        let place = |row: &&Row| Some((row.point.as_ref()?.x.max(1.0), value(row)?));
        rows.iter().filter_map(place).collect()
    };
    let series = [
        ("tenure", OURS, places(&|row| Some(row.ours.value))),
        ("best peer", PEER, places(&|row| row.best_peer().map(|peer| peer.figure.value))),
        ("limit", LIMIT, places(&|row| row.limit.as_ref().map(|limit| limit.figure.value))),
    ];
    let all = || series.iter().flat_map(|(_, _, places)| places.iter().copied());
    let within = |values: &mut dyn Iterator<Item = f64>| {
        let values: Vec<f64> = values.collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min).max(0.001);
        let most = values.iter().copied().fold(0.0, f64::max).max(least);
        (least, most)
    };
    let (left, right) = within(&mut all().map(|(x, _)| x));
    let (low, high) = within(&mut all().map(|(_, y)| y));
    let unit = &*rows[0].unit;
    let axis = rows[0].point.as_ref().map_or("", |point| &*point.axis);
    let mut chart = ChartBuilder::on(root)
        .caption(title, text(15.0))
        .margin(12)
        .x_label_area_size(42)
        .y_label_area_size(64)
        .build_cartesian_2d((left..right * 1.2).log_scale(), (low / 2.0..high * 2.0).log_scale())?;
    chart
        .configure_mesh()
        .axis_style(GRID)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(text(12.0))
        .x_desc(axis)
        .y_desc(unit)
        .x_label_formatter(&|x| number(*x))
        .y_label_formatter(&|y| number(*y))
        .draw()?;
    for (place, (name, colour, points)) in series.into_iter().enumerate() {
        if points.is_empty() {
            continue;
        }
        chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|at| Circle::new(*at, 4, colour.filled())))?;
        let style = ("sans-serif", 12.0).into_font().color(&colour);
        root.draw_text(name, &style, (90 + 90 * place as i32, 40))?;
    }
    Ok(())
}

/// The costs of all clients and the limit, the least of them on top.
fn bars(root: &Area<'_>, row: &Row) -> Outcome<()> {
    let mut sides = vec![("tenure", row.ours.value, OURS)];
    sides.extend(row.peers.iter().map(|peer| (peer.name.as_str(), peer.figure.value, PEER)));
    sides.extend(row.limit.iter().map(|limit| (limit.name.as_str(), limit.figure.value, LIMIT)));
    sides.sort_by(|one, other| one.1.total_cmp(&other.1));
    let most = sides.iter().map(|side| side.1).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    root.draw_text(&row.what, &text(15.0), (12, 14))?;
    let (left, width) = (270, 270.0);
    for (place, (name, value, colour)) in sides.into_iter().enumerate() {
        let top = 44 + 26 * place as i32;
        let end = left + (value / most * width).max(1.0) as i32;
        root.draw_text(&shortened(name), &text(12.0), (12, top + 3))?;
        root.draw(&Rectangle::new([(left, top), (end, top + 17)], colour.filled()))?;
        let figure = format!("{} {}", number(value), row.unit);
        root.draw_text(&figure, &text(12.0), (end + 6, top + 3))?;
    }
    Ok(())
}

/// As much of a name as there is room for.
fn shortened(name: &str) -> String {
    const ROOM: usize = 38;
    if name.chars().count() <= ROOM {
        return name.into();
    }
    name.chars().take(ROOM - 1).chain(['…']).collect()
}

fn text(size: f64) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// Text that is neither markup nor the end of an attribute.
pub(crate) fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Figure;

    #[test]
    fn a_row_with_peers_has_bars_for_each_side_and_a_grown_cost_a_line() {
        let compared = Row::time("redis: a < b", Figure::once(2.0))
            .peer("slow & old", Figure::once(30.0))
            .limit("a socket", Figure::once(1.0), None);
        let grown = |x, y| Row::time("etcd: y", Figure::once(y)).at("etcd: growth", "waiters", x);
        let rows = [compared, grown(1.0, 5.0), grown(1000.0, 7.0)];
        let pictures = pictures(&rows).unwrap();
        assert_eq!(
            pictures.iter().map(|it| &*it.file).collect::<Vec<_>>(),
            ["etcd-growth.svg", "redis-a-b.svg"]
        );
        let bars = &pictures[1].svg;
        assert_eq!(bars.matches("<rect").count(), 3);
        assert!(bars.contains("slow &amp; old") && bars.contains("aria-label=\"redis: a &lt; b\""));
        assert_eq!(pictures[0].svg.matches("<circle").count(), 2);
    }
}
