// Line charts of the last minutes, drawn as SVG.

import { h, svg, show } from "./dom.js";

const WIDTH = 600;
const HEIGHT = 140;

/** A chart of one or two series over `points` samples. `text` makes a value readable. */
export class Chart {
  constructor(title, names, text, { points = 150, every = 2 } = {}) {
    this.title = title;
    this.names = names;
    this.text = text;
    this.points = points;
    this.every = every;
    this.last = null;
    this.minutes = Math.round((points * every) / 60);
    this.values = names.map(() => []);
    this.picture = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.legend = h("div", { class: "legend" });
    this.top = h("span", {});
    this.node = h(
      "section",
      { class: "card" },
      h("h2", {}, title),
      h(
        "div",
        { class: "chart-frame" },
        h("div", { class: "chart-ends" }, this.legend, this.top),
        this.picture,
        h("div", { class: "chart-ends", "aria-hidden": "true" }, h("span", {}, `${this.minutes} min ago`), h("span", {}, "now")),
      ),
    );
  }

  /** Add a sample of now; samples that are missing since the last one, as the page was not open, are a gap. */
  add(...values) {
    const now = performance.now() / 1000;
    const missing = this.last === null ? 0 : Math.min(this.points, Math.round((now - this.last) / this.every) - 1);
    this.last = now;
    values.forEach((value, at) => {
      for (let left = missing; left > 0; left -= 1) this.values[at].push(null);
      this.values[at].push(value);
      this.values[at].splice(0, this.values[at].length - this.points);
    });
    this.draw();
  }

  draw() {
    const known = this.values.flat().filter((value) => value !== null && value !== undefined);
    const most = Math.max(...known, 0) || 1;
    const place = (value, at, length) => [
      (WIDTH * (this.points - length + at)) / (this.points - 1),
      HEIGHT - 2 - (value / most) * (HEIGHT - 10),
    ];
    const lines = this.values.flatMap((values, series) => {
      const places = values.map((value, at) => (value === null || value === undefined ? null : place(value, at, values.length)));
      const runs = [];
      let run = [];
      for (const each of [...places, null]) {
        if (each) run.push(each);
        else if (run.length) {
          runs.push(run);
          run = [];
        }
      }
      return runs.flatMap((each) => {
        const path = each.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
        const area = `${path}L${each.at(-1)[0].toFixed(1)} ${HEIGHT}L${each[0][0].toFixed(1)} ${HEIGHT}Z`;
        return [svg("path", { class: `area series-${series}`, d: area }), svg("path", { class: `series series-${series}`, d: path })];
      });
    });
    show(this.picture, svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 }), svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: 8, y2: 8 }), lines);
    const now = this.names.map((name, at) => [name, this.text(this.values[at].at(-1))]);
    this.picture.setAttribute("aria-label", `${this.title} over the last ${this.minutes} minutes; now ${now.map((each) => each.join(" ")).join(", ")}; at most ${this.text(known.length ? Math.max(...known) : null)}`);
    show(this.legend, now.map(([name, text], at) => h("span", { class: `series-${at}` }, `${name} ${text}`)));
    show(this.top, Math.max(...known, 0) > 0 ? `top ${this.text(most)}` : "");
  }
}
