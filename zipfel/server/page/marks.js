// The words that pulled a tag, as ranges of the text: from the service's code points to what is painted.

/** Returns reasons as [start, end, weight] in JavaScript's UTF-16 units; Python counts an emoji as one, we as two. */
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

/** Returns the ranges that an edit has left alone, at their new places. */
export function moved(found, before, after) {
  const limit = Math.min(before.length, after.length);
  let head = 0;
  while (head < limit && before[head] === after[head]) head++;
  let tail = 0;
  while (tail < limit - head && before.at(-1 - tail) === after.at(-1 - tail)) tail++;
  const shift = after.length - before.length;
  return found.flatMap(([start, end, weight]) => {
    if (end <= head) return [[start, end, weight]];
    return start >= before.length - tail ? [[start + shift, end + shift, weight]] : [];
  });
}

/** Paints the text into the element, marked where it pulled for the tag (or, with a negative weight, against it). */
export function paint(element, text, found) {
  const most = Math.max(...found.map(([, , weight]) => Math.abs(weight)), Number.MIN_VALUE);
  const nodes = stretches(text.length, found).map(([start, end, weight]) => {
    const words = text.slice(start, end);
    return weight ? marked(words, weight / most) : words;
  });
  element.replaceChildren(...nodes, "\u200b"); // a last empty line has no height without a character in it
}

function marked(words, pull) {
  const mark = document.createElement("mark");
  mark.textContent = words;
  mark.classList.toggle("against", pull < 0);
  mark.style.setProperty("--pull", (0.25 + 0.75 * Math.abs(pull)).toFixed(2));
  return mark;
}

/** Returns stretches of equal weight that make up the whole length; where ranges overlap, the stronger one counts. */
function stretches(length, found) {
  const weights = new Float32Array(length);
  for (const [start, end, weight] of found)
    for (let unit = start; unit < end; unit++)
      if (Math.abs(weight) > Math.abs(weights[unit])) weights[unit] = weight;
  const runs = [];
  for (let start = 0, end = 0; start < length; start = end) {
    while (end < length && weights[end] === weights[start]) end++;
    runs.push([start, end, weights[start]]);
  }
  return runs;
}
