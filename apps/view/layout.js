// A tidy tree that grows to the right: columns are depths, and subtrees are as close as their outlines allow.

/**
 * Give every node its `row`, 0 at the top, and return the number of rows.
 *
 * Children come after their parents in `nodes`. Outlines of subtrees are kept per depth (Reingold and
 * Tilford, 1981, turned on its side), so that a shallow subtree does not keep deep ones apart.
 */
function placeRows(nodes) {
  const outlines = new Array(nodes.length); // top[k], bottom[k]: extent k levels below, from the node's row
  const offsets = new Float64Array(nodes.length); // from the parent's row
  for (let id = nodes.length - 1; id >= 0; id--) {
    const { children } = nodes[id];
    const top = [];
    const bottom = [];
    for (const child of children) {
      const below = outlines[child];
      let shift = 0;
      for (let k = 0; k < Math.min(bottom.length, below.top.length); k++) {
        shift = Math.max(shift, bottom[k] - below.top[k] + 1);
      }
      offsets[child] = shift;
      for (let k = 0; k < below.top.length; k++) {
        if (k >= top.length) top[k] = below.top[k] + shift;
        bottom[k] = below.bottom[k] + shift;
      }
      outlines[child] = null;
    }
    const lit = children.find((child) => nodes[child].lit); // so that the accepted path is a straight line
    const middle = lit ? offsets[lit] : children.length ? (offsets[children[0]] + offsets[children.at(-1)]) / 2 : 0;
    for (const child of children) offsets[child] -= middle;
    outlines[id] = { top: [0, ...top.map((y) => y - middle)], bottom: [0, ...bottom.map((y) => y - middle)] };
  }
  const highest = Math.min(...outlines[0].top);
  for (const node of nodes) {
    node.row = node.parent < 0 ? -highest : nodes[node.parent].row + offsets[node.id];
  }
  return Math.max(...outlines[0].bottom) - highest + 1;
}

const LABEL = 97; // pixels that a column needs for a label with its numbers,
const TIGHT = 78; // for a label alone,
const SCANT = 40; // and for its first letters

/**
 * Where each column starts, in pixels, in a frame `width` wide.
 *
 * Where there is no room for labels in all of them, the columns of the accepted path keep theirs and the
 * others are narrow; `roomy` gives all of them room, past the frame's edge.
 */
function placeColumns(nodes, width, roomy) {
  const count = Math.max(...nodes.map((node) => node.depth)) + 1;
  const lit = nodes.at(-1).depth + 1; // the extra token ends the path
  const even = width / count;
  const others = count - lit;
  const fits = even >= TIGHT || !others;
  const left = width - Math.min(14 * others, 0.3 * width);
  const wide = fits ? Math.min(even, 150) : Math.min(LABEL, left / lit);
  const narrow = fits ? wide : (width - lit * wide) / others;
  const starts = [0];
  for (let depth = 0; depth < count; depth++) {
    const room = depth < lit ? wide : narrow;
    starts.push(starts[depth] + (roomy ? Math.max(room, 114) : room));
  }
  return starts;
}
