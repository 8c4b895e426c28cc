// The words behind a tag, as ranges of the text: from the service's code points to painted marks.

const MARKS = 500; // most marks in a text

/** Returns reasons as [start, end, weight] in UTF-16 units; an emoji is one character in Python, two units here. */
export function ranges(text, reasons) {
  const at = unitsOfPoints(text);
  return reasons.flatMap(({ weight, places }) => places.map(([start, end]) => [at[start], at[end], weight]));
}

function unitsOfPoints(text) {
  const at = [];
  let unit = 0;
  for (const point of text) {
    at.push(unit);
    unit += point.length;
  }
  at.push(unit);
  return at;
}

/** Returns the ranges that an edit did not touch, at their new positions. */
export function moved(ranges, before, after) {
  const [head, tail] = sameEnds(before, after);
  const shift = after.length - before.length;
  return ranges.flatMap(([start, end, weight]) => {
    if (end <= head) return [[start, end, weight]];
    return start >= before.length - tail ? [[start + shift, end + shift, weight]] : [];
  });
}

/** Returns the largest weight of ranges, whatever its sign. */
export function strongest(ranges) {
  return Math.max(...ranges.map(([, , weight]) => Math.abs(weight)), Number.MIN_VALUE);
}

const painted = new WeakMap(); // element → its pieces: {words, pull}, a child node for each

/**
 * Paints the text into the element, with marks on words that support the tag (negative weight: count against it), relative to `most`.
 * Nodes that stay the same are left alone, because laying out a long text anew takes longer than a key press.
 */
export function paint(element, text, ranges, most) {
  const pieces = stretches(text.length, foremost(ranges)).map(([start, end, weight]) => ({ words: text.slice(start, end), pull: weight / most }));
  pieces.push({ words: "\u200b", pull: 0 }); // an empty last line has no height without a character
  if (!painted.has(element)) element.replaceChildren();
  const before = painted.get(element) ?? [];
  const [head, tail] = sameEnds(before, pieces, (one, other) => one.words === other.words && one.pull === other.pull);
  replace(element, head, before.slice(head, before.length - tail), pieces.slice(head, pieces.length - tail));
  painted.set(element, pieces);
}

/** Returns the ranges with the largest weights, at most MARKS. */
function foremost(ranges) {
  if (ranges.length <= MARKS) return ranges;
  return [...ranges].sort(([, , one], [, , other]) => Math.abs(other) - Math.abs(one)).slice(0, MARKS);
}

/** Returns how many items at the start and at the end of two lists or texts are the same. */
function sameEnds(one, other, same = Object.is) {
  const limit = Math.min(one.length, other.length);
  let head = 0;
  while (head < limit && same(one[head], other[head])) head++;
  let tail = 0;
  while (tail < limit - head && same(one[one.length - 1 - tail], other[other.length - 1 - tail])) tail++;
  return [head, tail];
}

/** Replaces the nodes of pieces, from the child with number `first` on. */
function replace(element, first, old, fresh) {
  const nodes = Array.from(old, (_, at) => element.childNodes[first + at]);
  if (old.length === 1 && fresh.length === 1 && !old[0].pull && !fresh[0].pull) return edit(nodes[0], fresh[0].words);
  const next = element.childNodes[first + old.length] ?? null;
  for (const node of nodes) node.remove();
  for (const { words, pull } of fresh) element.insertBefore(pull ? marked(words, pull) : document.createTextNode(words), next);
}

/** Changes a text node where it differs. */
function edit(node, words) {
  const [head, tail] = sameEnds(node.data, words);
  node.replaceData(head, node.length - head - tail, words.slice(head, words.length - tail));
}

function marked(words, strength) {
  const mark = document.createElement("mark");
  mark.textContent = words;
  mark.classList.toggle("against", strength < 0);
  mark.style.setProperty("--pull", (0.25 + 0.75 * Math.abs(strength)).toFixed(2));
  return mark;
}

/** Splits the whole length into stretches of equal weight; where ranges overlap, the stronger weight counts. */
function stretches(length, ranges) {
  const weights = new Float32Array(length);
  for (const [start, end, weight] of ranges)
    for (let unit = start; unit < end; unit++)
      if (Math.abs(weight) > Math.abs(weights[unit])) weights[unit] = weight;
  const runs = [];
  for (let start = 0, end = 0; start < length; start = end) {
    while (end < length && weights[end] === weights[start]) end++;
    runs.push([start, end, weights[start]]);
  }
  return runs;
}
