// The words behind a tag, as ranges of the text: from the service's code points to painted marks.

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
  const limit = Math.min(before.length, after.length);
  let head = 0;
  while (head < limit && before[head] === after[head]) head++;
  let tail = 0;
  while (tail < limit - head && before.at(-1 - tail) === after.at(-1 - tail)) tail++;
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

/** Paints the text into the element, with marks on words that support the tag (negative weight: count against it), relative to `most`. */
export function paint(element, text, ranges, most) {
  const nodes = stretches(text.length, ranges).map(([start, end, weight]) => {
    const words = text.slice(start, end);
    return weight ? marked(words, weight / most) : words;
  });
  element.replaceChildren(...nodes, "\u200b"); // an empty last line has no height without a character
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
