"use strict";
// Text only ever enters the page through textContent: what a data set holds stays text.
const element = (tag, text, attributes = {}) => {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};

// Sortable tables: the last heading row has one button a column; rows without a number stay below.
const key = (cell) => {
  const given = cell.dataset.sort ?? cell.textContent.trim();
  const number = Number(given);
  return given === "" || Number.isNaN(number) ? given : number;
};
const missing = (value) => value === "" || value === "—" || value === "n/a";
const compare = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows].flatMap((row) => [...row.cells]).filter((head) => head.scope === "col");
  heads.forEach((head, column) => {
    const button = element("button", head.textContent, {type: "button"});
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.ariaSort !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].map((row) => [key(row.cells[column]), row]);
      rows.sort(([a], [b]) => missing(a) || missing(b) ? missing(a) - missing(b) : (down ? -1 : 1) * compare(a, b));
      table.tBodies[0].replaceChildren(...rows.map(([, row]) => row));
    });
  });
}
for (const field of document.querySelectorAll(".rowfilter")) {
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of document.getElementById(field.dataset.table).tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}

// Word diff: longest common subsequence of words, whatever the blanks before them; [kind, text] with kind
// "=", "+" or "-".
const words = (text) => text.match(/\s*\S+|\s+$/g) || [];
const difference = (before, after) => {
  const a = words(before), b = words(after), n = a.length, m = b.length;
  const same = (i, j) => a[i].trim() === b[j].trim();
  if (n * m > 4e6) return [["-", before], ["+", after]];
  const longest = Array.from({length: n + 1}, () => new Uint32Array(m + 1));
  for (let i = n - 1; i >= 0; i--)
    for (let j = m - 1; j >= 0; j--)
      longest[i][j] = same(i, j) ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  const parts = [];
  const push = (kind, word) => {
    if (parts.length && parts.at(-1)[0] === kind) parts.at(-1)[1] += word; else parts.push([kind, word]);
  };
  let i = 0, j = 0;
  while (i < n || j < m) {
    if (i < n && j < m && same(i, j)) { push("=", b[j]); i++; j++; }
    else if (j >= m || (i < n && longest[i + 1][j] >= longest[i][j + 1])) push("-", a[i++]);
    else push("+", b[j++]);
  }
  return parts;
};

// Share of (layer, head) pairs that keep each visual token, as darkness over what is dropped.
const shade = (canvas, grid, shares, offset) => {
  canvas.width = 8 * grid.columns; canvas.height = 8 * grid.rows;
  const pen = canvas.getContext("2d");
  // Tiles that stand over the picture's edge: the grid is larger than the picture by these factors.
  pen.scale(grid.width, grid.height);
  for (let row = 0; row < grid.rows; row++)
    for (let column = 0; column < grid.columns; column++) {
      const share = shares[offset + row * grid.columns + column] / 255;
      pen.fillStyle = `rgba(20, 20, 40, ${0.85 * (1 - share)})`;
      pen.fillRect(8 * column, 8 * row, 8, 8);
      if (share > 0.02) {
        pen.fillStyle = `rgba(230, 120, 0, ${0.45 * share})`;
        pen.fillRect(8 * column, 8 * row, 8, 8);
      }
    }
};

class Browser {
  constructor(section) {
    this.section = section;
    this.find = (name) => section.querySelector(name);
    this.data = JSON.parse(this.find(".data").textContent);
    this.full = this.data.cells.findIndex((cell) => cell.full);
    for (const sample of this.data.samples) {
      const given = this.full < 0 ? null : sample.w[this.full];
      sample.changed = given === null ? 0 : sample.w.filter((w) => w !== null && w !== given).length;
      const base = this.full < 0 ? null : sample.s[this.full];
      const scores = sample.s.filter((score) => score !== null);
      sample.loss = base === null ? 0 : Math.max(0, ...scores.map((score) => base - score));
      sample.text = [sample.i, sample.id, sample.q ?? "", ...sample.r, ...sample.t].join("\n").toLowerCase();
    }
    for (const [name, event] of [[".filter", "input"], [".order", "change"], [".only", "change"]])
      this.find(name).addEventListener(event, () => this.fill());
    this.list = this.find(".list");
    this.list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.open(Number(button.dataset.at));
    });
    section.addEventListener("keydown", (event) => this.press(event));
    this.fill();
  }

  fill() {
    const wanted = this.find(".filter").value.toLowerCase(), order = this.find(".order").value;
    this.shown = this.data.samples.filter((sample) =>
      sample.text.includes(wanted) && (!this.find(".only").checked || sample.changed));
    if (order !== "index") this.shown.sort((a, b) => b[order] - a[order] || a.i - b.i);
    const rows = document.createDocumentFragment();
    this.shown.forEach((sample, at) => {
      const row = element("li"), button = element("button", null, {type: "button", "data-at": at});
      button.append(element("b", `${sample.i} · ${sample.q ?? sample.id}`));
      button.append(element("small", this.full < 0 ? `${sample.t.length} distinct answers` :
        `${sample.changed} of ${this.data.cells.length - 1} answers changed`));
      row.append(button);
      rows.append(row);
    });
    this.list.replaceChildren(rows);
    this.find(".count").textContent = `${this.shown.length} of ${this.data.samples.length} samples`;
    this.at = -1;
  }

  press(event) {
    const typing = event.target.matches("input[type=search], select");
    if (event.key === "Escape") {
      (this.list.querySelector("[aria-current]") ?? this.find(".filter")).focus();
    } else if (event.key === "/" && !typing) {
      this.find(".filter").focus();
      event.preventDefault();
    } else if (!event.target.closest("select") && (event.key === "ArrowDown" || (event.key === "j" && !typing))) {
      this.open(Math.min(this.at + 1, this.shown.length - 1));
      event.preventDefault();
    } else if (!event.target.closest("select") && (event.key === "ArrowUp" || (event.key === "k" && !typing))) {
      this.open(Math.max(this.at - 1, 0));
      event.preventDefault();
    }
  }

  open(at) {
    if (!this.shown[at]) return;
    this.list.querySelector("[aria-current]")?.removeAttribute("aria-current");
    this.at = at;
    const button = this.list.children[at].firstChild;
    button.setAttribute("aria-current", "true");
    button.focus();
    this.find(".detail").replaceChildren(...this.detail(this.shown[at]));
    this.find(".detail").scrollTop = 0;
  }

  detail(sample) {
    const top = element("div", null, {class: "top"}), words = element("div");
    words.append(element("h4", `Sample ${sample.i} (${sample.id})`));
    words.append(element("p", sample.q ?? "The question is not at hand.", {class: "question"}));
    words.append(element("p", sample.r.length ? `Reference: ${sample.r.join(" | ")}` :
      "The data set has no reference answer.", {class: "reference"}));
    top.append(words);
    const uris = (sample.p ?? []).map((digest) => document.getElementById(`picture-${digest}`).textContent);
    return [top, ...this.pictures(sample, uris), this.answers(sample)];
  }

  // The picture twice, each under the retained tokens of a chosen method.
  pictures(sample, uris) {
    if (!uris.length) return [element("p", "No picture is embedded for this sample; `kvbench report images=N` embeds those of N.", {class: "hint"})];
    const made = element("div", null, {class: "overlays"});
    const known = (sample.k ?? []).flatMap((shares, cell) => shares ? [cell] : []);
    for (const first of known.length > 1 ? [known[0], known.at(-1)] : [known[0] ?? -1]) {
      const side = element("div"), choice = element("select", null, {"aria-label": "retained tokens of"});
      choice.append(element("option", "picture alone", {value: -1}));
      for (const cell of known) choice.append(element("option", this.data.cells[cell].label, {value: cell}));
      choice.value = first;
      const canvases = uris.map((uri) => {
        const picture = element("span", null, {class: "picture"}), canvas = element("canvas");
        picture.append(element("img", null, {src: uri, alt: "picture of the sample"}), canvas);
        side.append(picture);
        return canvas;
      });
      const draw = () => canvases.forEach((canvas, number) => {
        canvas.width = 0;
        if (choice.value < 0) return;
        const bytes = Uint8Array.from(atob(sample.k[choice.value]), (letter) => letter.charCodeAt(0));
        const offset = sample.g.slice(0, number).reduce((sum, grid) => sum + grid.rows * grid.columns, 0);
        shade(canvas, sample.g[number], bytes, offset);
      });
      if (known.length) side.prepend(choice);
      choice.addEventListener("change", draw);
      draw();
      made.append(side);
    }
    const note = known.length ? "Bright tiles are kept by more layers and heads; dark ones are dropped." :
      "The store does not hold which tokens are kept: `kvbench report overlays=4` works it out.";
    return [made, element("p", note, {class: "hint overlay-note"})];
  }

  answers(sample) {
    const table = element("table", null, {class: "answers"});
    const head = element("tr");
    for (const title of ["method", this.data.metric, "answer, against the uncompressed one"])
      head.append(element("th", title, {scope: "col"}));
    table.append(head);
    const reference = this.full < 0 || sample.w[this.full] === null ? null : sample.t[sample.w[this.full]];
    const parts = new Map();  // cells that gave the same answer share its diff
    this.data.cells.forEach((cell, number) => {
      const which = sample.w[number];
      const row = element("tr", null, cell.full ? {class: "ref"} : {}), text = element("td");
      row.append(element("th", cell.label, {scope: "row"}));
      row.append(element("td", sample.s[number] === null ? "—" : String(sample.s[number]), {class: "score"}));
      if (which === null) text.textContent = "not answered";
      else if (cell.full || reference === null) text.textContent = sample.t[which];
      else {
        if (!parts.has(which)) parts.set(which, difference(reference, sample.t[which]));
        for (const [kind, part] of parts.get(which))
          text.append(kind === "=" ? part : element(kind === "+" ? "ins" : "del", part));
      }
      if (sample.c?.[number]) text.append(element("small", `\nafter reasoning: ${sample.c[number]}`));
      row.append(text);
      table.append(row);
    });
    return table;
  }
}

// A group is read and listed when it comes near the window, so a page of many groups opens at once.
const watcher = new IntersectionObserver((seen) => {
  for (const {isIntersecting, target} of seen)
    if (isIntersecting) { watcher.unobserve(target); new Browser(target); }
}, {rootMargin: "600px"});
for (const section of document.querySelectorAll(".browser")) watcher.observe(section);
