// The tree as a picture that can be moved and zoomed. Labels keep their size; zooming makes room for them.

const NEAR = 50; // pixels between rows where nothing is gained by more
const LABELS = 22; // from here every node has a label,
const NUMBERS = 44; // and from here its probabilities
const MARGIN = 22;

const font = document.createElement("canvas").getContext("2d");

class TreeView {
  constructor(onNode) {
    this.svg = byId("tree");
    this.frame = byId("frame");
    this.onNode = onNode; // called with a node and its element, or with null
    this.nodes = [];
    this.active = null;
    this.listen();
  }

  /** Make the frame as high as the largest tree of these rounds needs, up to its limit. */
  makeRoom(rounds) {
    this.frame.style.removeProperty("height");
    const limit = this.frame.clientHeight;
    let needed = 0;
    for (const round of rounds) {
      if (needed < limit) needed = Math.max(needed, placeRows(nodesOf(round)) * NEAR + 2 * MARGIN);
    }
    this.frame.style.height = `${Math.min(limit, Math.max(240, needed))}px`;
  }

  show(round) {
    this.nodes = nodesOf(round);
    this.rows = placeRows(this.nodes);
    this.active = null;
    this.svg.removeAttribute("aria-activedescendant");
    this.svg.setAttribute("aria-label", `The round's tree, ${plural(this.nodes.length - 1, "node")}`);
    this.fit();
  }

  get size() {
    return { width: this.frame.clientWidth, height: this.frame.clientHeight };
  }

  get whole() {
    const room = this.size.height - 2 * MARGIN;
    return Math.min(NEAR, room / this.rows);
  }

  /** Pixels between rows. */
  get step() {
    return Math.min(Math.max(NEAR, this.whole), this.whole * this.scale);
  }

  fit() {
    this.scale = 1;
    this.x = this.y = null;
    this.draw();
  }

  /** Zoom by a factor around a point of the frame; the middle by default. */
  zoom(factor, px = this.size.width / 2, py = this.size.height / 2) {
    const old = { step: this.step, starts: this.starts, x: this.x, y: this.y };
    this.scale = Math.min(Math.max(2, NEAR / this.whole), Math.max(1, this.scale * factor));
    this.columns();
    this.y = py - ((py - old.y) / old.step) * this.step;
    this.x = px - rescaled(px - old.x, old.starts, this.starts);
    this.draw();
  }

  /** The accepted path, near enough for its neighbours' labels. */
  follow() {
    this.scale = Math.max(1.5, NUMBERS / this.whole);
    this.x = null;
    this.columns();
    this.y = this.size.height / 2 - (this.nodes[0].row + 0.5) * this.step;
    this.clamp();
    this.reveal(this.nodes.at(-1));
  }

  /** Bring a node into the frame. */
  reveal(node) {
    const { width, height } = this.size;
    const x = this.starts[node.depth];
    const y = (node.row + 0.5) * this.step;
    const right = this.starts[node.depth + 1];
    if (this.y + y < 30 || this.y + y > height - 30) this.y = height / 2 - y;
    if (this.x + x < 8) this.x = MARGIN - x;
    if (this.x + right > width) this.x = width - right - MARGIN;
    this.draw();
  }

  columns() {
    this.starts = placeColumns(this.nodes, this.size.width - 2 * MARGIN, this.scale > 1 && this.step >= LABELS);
  }

  /** Keep the picture in the frame; centre what is smaller than it. */
  clamp() {
    const { width, height } = this.size;
    const wide = this.starts.at(-1);
    const high = this.rows * this.step;
    const within = (at, inner, outer) => Math.min(MARGIN, Math.max(outer - inner - MARGIN, at ?? MARGIN));
    this.x = within(this.x, wide, Math.min(width, wide + 2 * MARGIN));
    const room = height - 2 * MARGIN;
    this.y = high <= room ? MARGIN + (room - high) / 2 : within(this.y, high, height);
  }

  draw() {
    if (!this.nodes.length || !this.size.width) return;
    this.columns();
    this.clamp();
    const links = shape("g", { class: "links", "aria-hidden": "true" });
    const items = [];
    for (const node of this.nodes) {
      if (node.parent >= 0) links.append(this.link(node));
      items.push(this.item(node));
    }
    // What is lit lies on top of what is not.
    const order = [...links.children].sort((a, b) => a.classList.contains("lit") - b.classList.contains("lit"));
    links.replaceChildren(...order);
    items.sort((a, b) => a.classList.contains("lit") - b.classList.contains("lit"));
    this.svg.replaceChildren(links, ...items);
    this.move();
    if (this.active !== null) this.activate(this.nodes[this.active], false);
  }

  move() {
    const { width, height } = this.size;
    this.svg.setAttribute("viewBox", `${-this.x} ${-this.y} ${width} ${height}`);
  }

  /** Where a node's shape is: a box with a label, or a dot where there is no room for one. */
  place(node) {
    const x = this.starts[node.depth];
    const y = (node.row + 0.5) * this.step;
    const room = this.starts[node.depth + 1] - x;
    const labelled = room >= (node.lit ? SCANT : TIGHT) && (node.lit || this.step >= LABELS);
    const width = labelled ? Math.min(126, room - (room > 106 ? 28 : 19)) : 0;
    const numbers = width >= LABEL - 19 && this.step >= NUMBERS;
    return { labelled, numbers, x, y, width, height: numbers ? 39 : 20 };
  }

  link(node) {
    const from = this.place(this.nodes[node.parent]);
    const to = this.place(node);
    const x = from.x + from.width;
    const middle = (x + to.x) / 2;
    const thick = node.lit ? 2.5 : 0.7 + Math.min(2.8, this.step / 5) * node.target;
    return shape("path", {
      class: `link ${node.lit ? "lit" : ""} ${node.extra ?? ""}`,
      d: `M${x} ${from.y} C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`,
      "stroke-width": thick.toFixed(2),
      "stroke-opacity": node.lit ? 1 : (0.25 + 0.75 * node.target).toFixed(2),
    });
  }

  item(node) {
    const { labelled, numbers, x, y, width, height } = this.place(node);
    const kind = node.extra ?? (node.parent < 0 ? "root" : node.lit ? depthClass(node.depth) : "other");
    const item = shape("g", {
      id: `node-${node.id}`,
      class: `node ${kind} ${node.lit ? "lit" : ""}`,
      role: "treeitem",
      "aria-level": node.depth + 1,
      "aria-label": sentenceOf(node),
      "aria-selected": "false",
      transform: `translate(${x},${y})`,
    });
    if (!labelled) {
      const r = Math.max(1.1, Math.min(4, this.step * 0.34));
      item.append(shape("circle", { r: r.toFixed(2) }));
      return item;
    }
    item.append(shape("rect", { class: "box", y: -height / 2, width, height, rx: 5 }));
    const text = shape("text", { x: 6, y: numbers ? -5.5 : 2 });
    text.textContent = shortened(visible(node.text), width - 11);
    item.append(text);
    if (node.parent < 0) return item;
    if (numbers) this.numbers(item, node, width);
    this.bars(item, node, width - 12, height / 2 - (numbers ? 7 : 6));
    return item;
  }

  bars(item, node, length, y) {
    for (const [name, p, at] of [["draft", node.draft, y], ["target", node.target, y + 2.5]]) {
      if (p === null) continue;
      item.append(shape("rect", { class: name, x: 6, y: at, width: Math.max(0.75, length * p), height: 2 }));
    }
  }

  numbers(item, node, width) {
    const line = shape("text", { class: "numbers", x: 6, y: 8 });
    for (const [name, letter, p] of [["draft", "d", node.draft], ["target", "t", node.target]]) {
      if (p === null) continue;
      const part = shape("tspan", { class: name });
      part.textContent = `${letter} ${brief(p)}`;
      if (line.childElementCount) part.setAttribute("x", width / 2 + 3);
      line.append(part);
    }
    item.append(line);
  }

  activate(node, reveal = true) {
    this.active = node.id;
    if (reveal) return this.reveal(node);
    for (const old of this.svg.querySelectorAll(".active")) {
      old.classList.remove("active");
      old.setAttribute("aria-selected", "false");
    }
    const item = byId(`node-${node.id}`);
    item.classList.add("active");
    item.setAttribute("aria-selected", "true");
    this.svg.setAttribute("aria-activedescendant", item.id);
    return this.onNode(node, item);
  }

  leave() {
    this.active = null;
    this.svg.removeAttribute("aria-activedescendant");
    for (const old of this.svg.querySelectorAll(".active")) old.classList.remove("active");
    this.onNode(null);
  }

  /** The node next to the active one; true where the key means one. */
  walk(key) {
    const node = this.nodes[this.active ?? 0];
    const column = () =>
      this.nodes.filter((one) => one.depth === node.depth).sort((a, b) => a.row - b.row);
    const beside = (by) => {
      const all = column();
      return all[all.indexOf(node) + by];
    };
    const moves = {
      ArrowLeft: () => this.nodes[node.parent],
      ArrowRight: () => this.nodes[node.children.find((id) => this.nodes[id].lit) ?? node.children[0]],
      ArrowUp: () => beside(-1),
      ArrowDown: () => beside(1),
      Home: () => this.nodes[0],
      End: () => this.nodes.at(-1),
    };
    if (!(key in moves)) return false;
    this.activate(moves[key]() ?? node);
    return true;
  }

  /** The node whose shape is nearest to a point of the frame, if one is near. */
  at(px, py) {
    let found = null;
    let nearest = 12;
    for (const node of this.nodes) {
      const { x, y, width, labelled, height } = this.place(node);
      const dx = Math.max(0, x + this.x - px, px - (x + this.x + width));
      const dy = Math.max(0, Math.abs(py - (y + this.y)) - (labelled ? height / 2 : 0));
      const distance = Math.hypot(dx, dy);
      // Boxes of the path lie over what is beside them.
      if (distance < nearest || (distance === nearest && node.lit)) [found, nearest] = [node, distance];
    }
    return found;
  }

  listen() {
    const { svg, frame } = this;
    let drag = null;
    const point = (event) => {
      const box = frame.getBoundingClientRect();
      return [event.clientX - box.left - frame.clientLeft, event.clientY - box.top - frame.clientTop];
    };
    svg.addEventListener("pointerdown", (event) => {
      drag = { at: point(event), x: this.x, y: this.y, moved: false };
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      const [px, py] = point(event);
      if (drag) {
        const [dx, dy] = [px - drag.at[0], py - drag.at[1]];
        drag.moved ||= Math.hypot(dx, dy) > 4;
        if (!drag.moved) return;
        [this.x, this.y] = [drag.x + dx, drag.y + dy];
        this.clamp();
        this.move();
        this.onNode(null);
        return;
      }
      const node = this.at(px, py);
      this.onNode(node, node && byId(`node-${node.id}`));
    });
    svg.addEventListener("pointerup", (event) => {
      const clicked = drag && !drag.moved && this.at(...point(event));
      drag = null;
      if (clicked) this.activate(clicked, false);
    });
    svg.addEventListener("pointercancel", () => (drag = null));
    svg.addEventListener("pointerleave", () => {
      const node = this.active !== null && document.activeElement === svg ? this.nodes[this.active] : null;
      this.onNode(node, node && byId(`node-${node.id}`));
    });
    svg.addEventListener("focus", () => {
      if (svg.matches(":focus-visible") && this.active === null) this.activate(this.nodes[0]);
    });
    svg.addEventListener("blur", () => this.leave());
    svg.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY / 300), ...point(event));
      },
      { passive: false },
    );
    svg.addEventListener("dblclick", (event) => this.zoom(1.8, ...point(event)));
  }
}

/** A position between old columns, between the new ones. */
function rescaled(x, old, starts) {
  for (let depth = 0; depth + 1 < old.length; depth++) {
    if (x <= old[depth + 1]) {
      const share = (x - old[depth]) / (old[depth + 1] - old[depth]);
      return starts[depth] + share * (starts[depth + 1] - starts[depth]);
    }
  }
  return starts.at(-1) + x - old.at(-1);
}

const widths = new Map();

/** As much of `text` as fits into `room` pixels. */
function shortened(text, room) {
  font.font = "12px ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', Consolas, monospace";
  const width = (part) => {
    if (!widths.has(part)) widths.set(part, font.measureText(part).width);
    return widths.get(part);
  };
  if (width(text) <= room) return text;
  const letters = [...text];
  while (letters.length > 1 && width(`${letters.join("")}…`) > room) letters.pop();
  return `${letters.join("")}…`;
}

/** The same tree for reading: a row for each node, each subtree below its node. */
function tableOf(round) {
  const nodes = nodesOf(round);
  const table = element("table");
  const shown = `${plural(nodes.length - 2, "drafted token")} and the extra one`;
  table.append(element("caption", "", `The round's tree: the root, ${shown}`));
  const head = element("tr");
  for (const name of ["node", "parent", "depth", "token", "id", "draft", "target", "target / draft", "outcome"]) {
    const cell = element("th", /token|outcome/.test(name) ? "word" : "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const top = element("thead");
  top.append(head);
  const body = element("tbody");
  const waiting = [0];
  while (waiting.length) {
    const node = nodes[waiting.pop()];
    waiting.push(...node.children.toReversed());
    body.append(tableRow(node));
  }
  table.append(top, body);
  return table;
}

function tableRow(node) {
  const root = node.parent < 0;
  const row = element("tr", node.lit ? "lit" : "");
  const name = element("th", "", node.extra ? "extra" : String(node.id));
  name.scope = "row";
  const token = element("td", "word");
  token.append(element("span", `token ${node.extra ?? (node.lit && !root ? depthClass(node.depth) : "")}`, visible(node.text)));
  const number = (p) => element("td", "", root || p === null ? "" : probability(p));
  const ratio = !root && node.draft ? (node.target / node.draft).toPrecision(3) : "";
  row.append(
    name,
    element("td", "", root ? "" : String(node.parent)),
    element("td", "", String(node.depth)),
    token,
    element("td", "", String(node.token)),
    number(node.draft),
    number(node.target),
    element("td", "", ratio),
    element("td", "word", node.fate),
  );
  return row;
}
