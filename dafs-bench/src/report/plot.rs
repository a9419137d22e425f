//! Charts as SVG, drawn by `plotters` with its SVG backend alone: no fonts, no C libraries, three small crates.

use std::path::Path;

use anyhow::{Context, anyhow};
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::record::{Axis, Chart, Panel, Scale};
use crate::report::{figure, size};

/// Width and height of one panel in pixels.
const PANEL: (u32, u32) = (560, 400);
const TITLE_HEIGHT: u32 = 44;
const LEGEND_LINE_HEIGHT: u32 = 22;
const LEGEND_COLUMNS_MAX: u32 = 4;
/// Left of the names in the legend: a margin and a piece of the curve.
const LEGEND_LINE_WIDTH: u32 = 38;
const LEGEND_MARGIN: u32 = 24;
const REMARK_HEIGHT: u32 = 16;
const TITLE_FONT: u32 = 22;
const PANEL_FONT: u32 = 17;
const LEGEND_FONT: u32 = 13;
const REMARK_FONT: u32 = 12;

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xe4);
const REFERENCE: RGBColor = RGBColor(0x88, 0x88, 0x88);
/// Okabe and Ito's colours, told apart by most eyes and on paper.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
];

/// Dashes and gaps of curves that come when all colours are taken.
const DASHES: [(u32, u32); 3] = [(9, 4), (2, 3), (14, 3)];
/// Dashes and gaps of reference curves, one pair after the other.
const REFERENCE_DASHES: [(u32, u32); 2] = [(3, 3), (10, 4)];

/// Draws `chart` into the file `path`.
pub fn write(chart: &Chart, path: &Path) -> anyhow::Result<()> {
    std::fs::write(path, render(chart)?)
        .with_context(|| format!("cannot write the plot to {}", path.display()))
}

/// Draws `chart` as the text of an SVG file.
pub fn render(chart: &Chart) -> anyhow::Result<String> {
    let mut text = String::new();
    // The error type borrows from the backend, so it is put into words at once.
    draw(chart, &mut text).map_err(|error| anyhow!("cannot draw the plot: {error}"))?;
    Ok(text)
}

type Drawn<T> = Result<T, Box<dyn std::error::Error>>;

fn draw(chart: &Chart, text: &mut String) -> Drawn<()> {
    let columns = chart.columns.clamp(1, chart.panels.len().max(1));
    let rows = chart.panels.len().div_ceil(columns).max(1);
    let legend = Legend::of(chart);
    // One column of the legend and the title, in its smallest font, have room however few panels there are.
    let width = PANEL.0 * u32::try_from(columns)?;
    let width = width.max(legend.column_width() + LEGEND_MARGIN);
    let legend_height = legend.height(width);
    let height = TITLE_HEIGHT + PANEL.1 * u32::try_from(rows)? + legend_height;
    let root = SVGBackend::with_string(text, (width, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (title_area, rest) = root.split_vertically(TITLE_HEIGHT);
    let centre = TextStyle::from(("sans-serif", fitting(&chart.title, TITLE_FONT, width)).into_font())
        .color(&INK)
        .pos(Pos::new(HPos::Center, VPos::Center));
    title_area.draw_text(
        &chart.title,
        &centre,
        (i32::try_from(width / 2)?, i32::try_from(TITLE_HEIGHT / 2 + 4)?),
    )?;
    let (panels_area, legend_area) = rest.split_vertically(PANEL.1 * u32::try_from(rows)?);
    let areas = panels_area.split_evenly((rows, columns));
    for (panel, area) in chart.panels.iter().zip(&areas) {
        draw_panel(panel, area, &legend)?;
    }
    legend.draw(&legend_area, width)?;
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// A bound of the width of `text`: few characters of a font without serifs are wider, in the mean of a line.
fn text_width(text: &str, font: u32) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX).saturating_mul(font).saturating_mul(3) / 5
}

/// The size of a font, at most `font`, in which `text` is no wider than `width` and a margin.
fn fitting(text: &str, font: u32, width: u32) -> u32 {
    let room = width.saturating_sub(LEGEND_MARGIN);
    (1..=font).rev().find(|&font| text_width(text, font) <= room).unwrap_or(1)
}

/// Remarks, each on one line if all fit in their font; else a line for each part that ends with a semicolon.
fn wrapped(remarks: &[String], width: u32) -> Vec<&str> {
    let fit = remarks.iter().all(|remark| fitting(remark, REMARK_FONT, width) == REMARK_FONT);
    let lines = remarks.iter().map(String::as_str);
    if fit {
        lines.collect()
    } else {
        lines.flat_map(|remark| remark.split_inclusive("; ")).map(str::trim).collect()
    }
}

fn draw_panel(panel: &Panel, area: &Area<'_>, legend: &Legend) -> Drawn<()> {
    let width = area.dim_in_pixel().0;
    let remarks = wrapped(&panel.remarks, width);
    let (area, words) = area.split_vertically(PANEL.1 - REMARK_HEIGHT * u32::try_from(remarks.len())?);
    // All in one size, that of the longest.
    let fonts = remarks.iter().map(|remark| fitting(remark, REMARK_FONT, width));
    let font = fonts.min().unwrap_or(REMARK_FONT);
    for (line, remark) in (0..).zip(remarks) {
        let style = TextStyle::from(("sans-serif", font).into_font()).color(&INK);
        let style = style.pos(Pos::new(HPos::Center, VPos::Center));
        let y = i32::try_from(REMARK_HEIGHT)? * line + i32::try_from(REMARK_HEIGHT / 2)?;
        words.draw_text(remark, &style, (i32::try_from(width / 2)?, y))?;
    }
    let points = || panel.curves.iter().flat_map(|curve| curve.points.iter());
    let marks = || panel.marks.iter().flat_map(|mark| [Some(mark.x), mark.to]).flatten();
    let x = Divided::of(&panel.x, points().map(|point| point.0).chain(marks()));
    let bands =
        panel.curves.iter().flat_map(|curve| curve.band.iter().flat_map(|(_, low, high)| [*low, *high]));
    let y = Divided::of(&panel.y, points().map(|point| point.1).chain(bands));
    let (x_low, x_high) = (x.low, x.high);
    let (y_low, y_high) = (y.low, y.high);
    let mut axes = ChartBuilder::on(&area)
        .caption(
            &panel.title,
            ("sans-serif", fitting(&panel.title, PANEL_FONT, width)).into_font().color(&INK),
        )
        .margin(10)
        .margin_right(22)
        .x_label_area_size(44)
        .y_label_area_size(68)
        .build_cartesian_2d(x, y)?;
    axes.configure_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(REFERENCE)
        .label_style(("sans-serif", 13).into_font().color(&INK))
        .axis_desc_style(("sans-serif", 14).into_font().color(&INK))
        .x_desc(&panel.x.label)
        .y_desc(&panel.y.label)
        .x_label_formatter(&|at| label(panel.x.scale, *at))
        .y_label_formatter(&|at| label(panel.y.scale, *at))
        .draw()?;
    // Intervals stand one above the other, at the lower edge.
    let mut heights = [0.03, 0.07, 0.11, 0.15].iter().cycle().map(|part| match panel.y.scale {
        Scale::Log | Scale::LogBytes => y_low * (y_high / y_low).powf(*part),
        Scale::Linear | Scale::Names(_) => y_low + (y_high - y_low) * part,
    });
    for mark in &panel.marks {
        let at = mark.x.clamp(x_low, x_high);
        let (style, dash, _) = legend.look(&mark.name);
        match mark.to {
            None => draw_line(&mut axes, &[(at, y_low), (at, y_high)], style.stroke_width(1), dash)?,
            Some(to) => {
                let (to, y) = (to.clamp(x_low, x_high), heights.next().unwrap_or(y_low));
                draw_line(&mut axes, &[(at, y), (to, y)], style.stroke_width(3), dash)?;
                let ends = [at, to].map(|x| {
                    EmptyElement::at((x, y)) + PathElement::new(vec![(0, -6), (0, 6)], style.stroke_width(2))
                });
                axes.draw_series(ends)?;
            }
        }
    }
    for curve in panel.curves.iter().filter(|curve| !curve.band.is_empty()) {
        let (style, ..) = legend.look(&curve.name);
        let (up, down) = (curve.band.iter().map(|(x, low, _)| (*x, *low)), curve.band.iter().rev());
        let outline: Vec<(f64, f64)> = up.chain(down.map(|(x, _, high)| (*x, *high))).collect();
        axes.draw_series([Polygon::new(outline, style.color.mix(0.18).filled())])?;
    }
    for curve in &panel.curves {
        let (style, dash, marker) = legend.look(&curve.name);
        draw_line(&mut axes, &curve.points, style.stroke_width(if curve.reference { 1 } else { 2 }), dash)?;
        if !curve.reference {
            let marked =
                |point: &(f64, f64)| EmptyElement::at(*point) + Polygon::new(marker.to_vec(), style.filled());
            axes.draw_series(curve.points.iter().map(marked))?;
        }
    }
    Ok(())
}

type Axes<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Divided, Divided>>;

fn draw_line(
    axes: &mut Axes<'_, '_>,
    points: &[(f64, f64)],
    style: ShapeStyle,
    dash: Option<(u32, u32)>,
) -> Drawn<()> {
    let points = points.iter().copied();
    match dash {
        Some((on, off)) => axes.draw_series(DashedLineSeries::new(points, on, off, style))?,
        None => axes.draw_series(LineSeries::new(points, style))?,
    };
    Ok(())
}

fn label(scale: Scale, at: f64) -> String {
    match scale {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "key points are sizes in bytes"
        )]
        Scale::LogBytes => size(at.round() as u64),
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "key points are small numbers"
        )]
        Scale::Names(names) => names
            .get((at.round() as usize).wrapping_sub(1))
            .map_or_else(String::new, |name| (*name).to_owned()),
        Scale::Log | Scale::Linear if at == 0.0 => "0".to_owned(),
        Scale::Log | Scale::Linear => {
            let text = figure(at);
            // `2.000` on an axis is noise.
            if text.contains('.') && !text.contains(' ') {
                text.trim_end_matches('0').trim_end_matches('.').to_owned()
            } else {
                text
            }
        }
    }
}

/// An axis that knows how to place itself and where its grid lines go. Logarithmic axes live in the logarithm and
/// have their key points at powers of the base.
struct Divided {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Divided {
    fn of(axis: &Axis, values: impl Iterator<Item = f64>) -> Self {
        let usable = |value: &f64| value.is_finite() && (axis.scale == Scale::Linear || *value > 0.0);
        if let Scale::Names(names) = axis.scale {
            return Self { scale: axis.scale, low: 0.5, high: names.len() as f64 + 0.5 };
        }
        let (mut low, mut high) = values
            .filter(usable)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        match axis.scale {
            // From zero, and below it where values are.
            Scale::Linear => {
                let high = if high > 0.0 { high * 1.08 } else { 1.0 };
                Self { scale: axis.scale, low: if low < 0.0 { low * 1.08 } else { 0.0 }, high }
            }
            Scale::Names(_) => Self { scale: axis.scale, low, high },
            Scale::Log => Self { scale: axis.scale, low: low / 1.25, high: high * 1.25 },
            Scale::LogBytes => Self { scale: axis.scale, low: low / 1.15, high: high * 1.15 },
        }
    }

    /// The powers of the base within the range, with steps between them where there are few.
    fn log_points(&self, base: f64, between: &[f64], points_max: usize) -> Vec<f64> {
        let first = self.low.log(base).floor();
        let decades = (self.high.log(base).ceil() - first).max(0.0);
        let powers = || {
            (0u32..).map(f64::from).take_while(|step| *step <= decades).map(|step| base.powf(first + step))
        };
        let within = |point: &f64| (self.low..=self.high).contains(point);
        let fine: Vec<f64> =
            powers().flat_map(|power| between.iter().map(move |part| power * part)).filter(within).collect();
        if fine.len() <= points_max {
            return fine;
        }
        let coarse: Vec<f64> = powers().filter(within).collect();
        let every = coarse.len().div_ceil(points_max.max(1)).max(1);
        coarse.into_iter().step_by(every).collect()
    }
}

impl Ranged for Divided {
    type FormatOption = plotters::coord::ranged1d::DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match self.scale {
            Scale::Linear | Scale::Names(_) => RangedCoordf64::from(self.low..self.high).map(value, limit),
            Scale::Log | Scale::LogBytes => {
                let value = value.max(self.low);
                RangedCoordf64::from(self.low.ln()..self.high.ln()).map(&value.ln(), limit)
            }
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self.scale {
            Scale::Linear => RangedCoordf64::from(self.low..self.high).key_points(hint),
            Scale::Names(names) => (1..=names.len()).map(|place| place as f64).collect(),
            Scale::Log => self.log_points(10.0, &[1.0, 2.0, 5.0], 9),
            Scale::LogBytes => self.log_points(2.0, &[1.0], 7),
        }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.low..self.high
    }
}

/// The corners of a shape, in pixels around a point.
type Marker = &'static [(i32, i32)];

/// Shapes that tell the curves apart without their colours, one for each colour.
const MARKERS: [Marker; COLOURS.len()] = [
    // Disc, square, triangles, diamond, cross.
    &[(-1, -4), (1, -4), (4, -1), (4, 1), (1, 4), (-1, 4), (-4, 1), (-4, -1)],
    &[(-4, -4), (4, -4), (4, 4), (-4, 4)],
    &[(0, -5), (5, 4), (-5, 4)],
    &[(0, 5), (5, -4), (-5, -4)],
    &[(0, -6), (4, 0), (0, 6), (-4, 0)],
    &[
        (-1, -5),
        (1, -5),
        (1, -1),
        (5, -1),
        (5, 1),
        (1, 1),
        (1, 5),
        (-1, 5),
        (-1, 1),
        (-5, 1),
        (-5, -1),
        (-1, -1),
    ],
];

const MARK_COLOURS: [RGBColor; 2] = [INK, RGBColor(0x99, 0x55, 0xbb)];
/// Dashes of marks: each colour has a line for one kind and one for the other, unlike those of all other colours.
const MARK_DASHES: [[Option<(u32, u32)>; 2]; 2] = [[None, Some((5, 4))], [Some((14, 3)), Some((2, 3))]];

/// Colour and dashes of a curve by its number: solid in each colour, then dashed.
fn look_of(number: usize) -> (RGBColor, Option<(u32, u32)>) {
    let colour = COLOURS[number % COLOURS.len()];
    match number / COLOURS.len() {
        0 => (colour, None),
        turn => (colour, Some(DASHES[(turn - 1) % DASHES.len()])),
    }
}

/// Names of curves and marks over all panels, each with one look.
struct Legend {
    entries: Vec<Entry>,
}

struct Entry {
    name: String,
    colour: RGBColor,
    dash: Option<(u32, u32)>,
    points: bool,
    marker: Marker,
}

impl Legend {
    fn of(chart: &Chart) -> Self {
        let mut legend = Self { entries: Vec::new() };
        let mut taken = 0;
        for curve in chart.panels.iter().flat_map(|panel| &panel.curves) {
            let known = legend.entries.iter().any(|entry| entry.name == curve.name);
            if !known {
                let (colour, dash) = if curve.reference {
                    let references = legend.entries.iter().filter(|entry| !entry.points).count();
                    (REFERENCE, Some(REFERENCE_DASHES[references % REFERENCE_DASHES.len()]))
                } else {
                    taken += 1;
                    look_of(taken - 1)
                };
                legend.entries.push(Entry {
                    name: curve.name.clone(),
                    colour,
                    dash,
                    points: !curve.reference,
                    marker: MARKERS[taken.saturating_sub(1) % MARKERS.len()],
                });
            }
        }
        let mut mark_colours = MARK_COLOURS.iter().cycle().copied();
        for mark in chart.panels.iter().flat_map(|panel| &panel.marks) {
            if legend.entries.iter().any(|entry| entry.name == mark.name) {
                continue;
            }
            // A solid and a dashed line for the same memory share a colour: what follows the first word is the same.
            let tail = |name: &str| name.split_once(' ').map_or(String::new(), |(_, tail)| tail.to_owned());
            let same =
                legend.entries.iter().find(|entry| !entry.points && tail(&entry.name) == tail(&mark.name));
            let colour = match same.map(|entry| entry.colour) {
                Some(colour) => colour,
                None => mark_colours.next().unwrap_or(INK),
            };
            let of_colour = MARK_COLOURS.iter().position(|of_marks| *of_marks == colour).unwrap_or(0);
            let dash = MARK_DASHES[of_colour][usize::from(mark.dashed)];
            let name = mark.name.clone();
            legend.entries.push(Entry { name, colour, dash, points: false, marker: MARKERS[0] });
        }
        legend
    }

    /// Colour, the lengths of dashes and gaps, and what stands at the points.
    fn look(&self, name: &str) -> (ShapeStyle, Option<(u32, u32)>, Marker) {
        let entry = self.entries.iter().find(|entry| entry.name == name);
        let colour = entry.map_or(INK, |entry| entry.colour);
        let marker = entry.map_or(MARKERS[0], |entry| entry.marker);
        (ShapeStyle::from(&colour), entry.and_then(|entry| entry.dash), marker)
    }

    /// Room for the longest name.
    fn column_width(&self) -> u32 {
        let names = self.entries.iter().map(|entry| text_width(&entry.name, LEGEND_FONT));
        LEGEND_LINE_WIDTH + names.max().unwrap_or(0) + LEGEND_MARGIN
    }

    fn columns(&self, width: u32) -> usize {
        (width.saturating_sub(LEGEND_MARGIN) / self.column_width()).clamp(1, LEGEND_COLUMNS_MAX) as usize
    }

    fn height(&self, width: u32) -> u32 {
        let lines = self.entries.len().div_ceil(self.columns(width));
        u32::try_from(lines).unwrap_or(1) * LEGEND_LINE_HEIGHT + 16
    }

    fn draw(&self, area: &Area<'_>, width: u32) -> Drawn<()> {
        let columns = self.columns(width);
        let lines = self.entries.len().div_ceil(columns).max(1);
        let left = TextStyle::from(("sans-serif", LEGEND_FONT).into_font())
            .color(&INK)
            .pos(Pos::new(HPos::Left, VPos::Center));
        for (index, entry) in self.entries.iter().enumerate() {
            // Column by column, as a legend is read.
            let x = i32::try_from(index / lines)? * i32::try_from(self.column_width())?
                + i32::try_from(LEGEND_MARGIN)?;
            let y = i32::try_from(index % lines)? * i32::try_from(LEGEND_LINE_HEIGHT)? + 12;
            let style = ShapeStyle::from(&entry.colour).stroke_width(if entry.points { 2 } else { 1 });
            let line = [(x, y), (x + 30, y)];
            match entry.dash {
                Some((on, off)) => area.draw(&DashedPathElement::new(line, on, off, style))?,
                None => area.draw(&PathElement::new(line, style))?,
            }
            if entry.points {
                area.draw(
                    &(EmptyElement::at((x + 15, y)) + Polygon::new(entry.marker.to_vec(), style.filled())),
                )?;
            }
            area.draw_text(&entry.name, &left, (x + i32::try_from(LEGEND_LINE_WIDTH)?, y))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Curve, Mark};

    fn panel(points: Vec<(f64, f64)>, scale: Scale) -> Panel {
        Panel {
            title: "tcp, read".into(),
            x: Axis { label: "size".into(), scale: Scale::LogBytes },
            y: Axis { label: "latency (µs)".into(), scale },
            curves: vec![Curve { name: "inline".into(), points, reference: false, band: Vec::new() }],
            marks: vec![Mark { name: "measured".into(), x: 4096.0, to: None, dashed: false }],
            remarks: vec!["between 2 KiB and 4 KiB".into()],
        }
    }

    #[test]
    fn chart_names_titles_axes_and_curves() {
        let panel = panel(vec![(256.0, 1.0), (65536.0, 20.0)], Scale::Log);
        let chart = Chart { title: "Crossover & more".into(), panels: vec![panel], columns: 2 };
        let svg = render(&chart).unwrap();
        for text in [
            "Crossover &amp; more",
            "tcp, read",
            "latency (µs)",
            "inline",
            "measured",
            "between 2 KiB and",
            "4 KiB",
        ] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn chart_without_points_or_panels_is_drawn_empty() {
        let empty = Chart { title: "nothing".into(), panels: Vec::new(), columns: 0 };
        assert!(render(&empty).is_ok());
        for scale in [Scale::Log, Scale::Linear, Scale::LogBytes] {
            let chart = Chart { title: String::new(), panels: vec![panel(Vec::new(), scale)], columns: 1 };
            assert!(render(&chart).is_ok());
        }
    }

    #[test]
    fn chart_with_zero_and_infinite_values_on_log_axis_is_drawn() {
        let panel = panel(vec![(0.0, 0.0), (f64::NAN, f64::INFINITY), (64.0, 2.0)], Scale::Log);
        assert!(render(&Chart { title: String::new(), panels: vec![panel], columns: 1 }).is_ok());
    }

    /// What stands in quotes after ` NAME=` in an element of SVG.
    fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
        let (_, rest) = element.split_once(&format!(" {name}=\"")).unwrap();
        rest.split_once('"').unwrap().0
    }

    #[test]
    fn text_of_any_length_stays_within_the_picture() {
        let long = "client-initiated, ordinary memory, and a name that goes on for quite a while";
        for (columns, count) in [(1, 1), (1, 4), (2, 2), (2, 9)] {
            let mut panel = panel(vec![(256.0, 1.0), (1e6, 20.0)], Scale::Log);
            panel.title = long.repeat(2);
            panel.remarks = vec![long.repeat(2), long.to_owned()];
            let names = (0..count).map(|number| format!("{number} {long}"));
            panel.curves = names
                .map(|name| Curve { name, points: vec![(256.0, 1.0)], reference: false, band: Vec::new() })
                .collect();
            let panels = vec![panel; columns];
            let svg = render(&Chart { title: long.repeat(2), panels, columns }).unwrap();
            let width: f64 = attribute(svg.lines().next().unwrap(), "width").parse().unwrap();
            let height: f64 = attribute(svg.lines().next().unwrap(), "height").parse().unwrap();
            let mut seen = 0;
            for element in svg.split("<text").skip(1).filter(|element| !element.contains("transform")) {
                let (head, rest) = element.split_once('>').unwrap();
                let text = rest.split_once("</text>").unwrap().0.trim();
                let number = |name| attribute(head, name).parse::<f64>().unwrap();
                // The mean width of a character is a little over half of its height.
                let wide = text.chars().count() as f64 * number("font-size") * 0.6;
                let before = match attribute(head, "text-anchor") {
                    "middle" => wide / 2.0,
                    "end" => wide,
                    _ => 0.0,
                };
                let left = number("x") - before;
                assert!(left >= 0.0 && left + wide <= width, "{text}: {left} to {} of {width}", left + wide);
                assert!((0.0..=height).contains(&number("y")), "{text}");
                seen += 1;
            }
            assert!(seen > count + columns, "{seen}");
        }
    }

    #[test]
    fn remarks_that_are_too_long_for_a_line_are_broken_at_semicolons() {
        let remarks = ["short; and short".to_owned(), format!("{}; and more", "long ".repeat(20))];
        assert_eq!(wrapped(&remarks[..1], 560), ["short; and short"]);
        assert_eq!(wrapped(&remarks, 560).len(), 4);
        assert_eq!(wrapped(&remarks, 560)[..2], ["short;", "and short"]);
    }

    #[test]
    fn interval_is_drawn_from_end_to_end() {
        let lines = |to| {
            let mut panel = panel(vec![(256.0, 1.0), (65536.0, 20.0)], Scale::Log);
            panel.marks[0].to = to;
            let chart = Chart { title: String::new(), panels: vec![panel], columns: 1 };
            render(&chart).unwrap().matches("<polyline").count()
        };
        // A bar and two ends in place of a line.
        assert_eq!(lines(Some(16_384.0)), lines(None) + 2);
    }

    #[test]
    fn curves_and_marks_differ_without_their_colours() {
        let mut looks: Vec<_> = (0..MARKERS.len() * 2)
            .map(|number| (MARKERS[number % MARKERS.len()], look_of(number).1))
            .collect();
        looks.sort_unstable();
        looks.dedup();
        assert_eq!(looks.len(), MARKERS.len() * 2);
        let mut dashes = MARK_DASHES.concat();
        dashes.sort_unstable();
        dashes.dedup();
        assert_eq!(dashes.len(), 4);
    }
}
