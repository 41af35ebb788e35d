// What is different between two texts, line by line: the longest common part stays, the rest was added or
// removed. Bounded: of long texts only what is between their common beginning and end is compared.

const LINES_MAX = 600;

/** [{kind: "same" | "added" | "removed", line}] that make `newer` of `older`. */
export function differences(older, newer) {
  const [one, other] = [older.split("\n"), newer.split("\n")];
  let begin = 0;
  while (begin < one.length && begin < other.length && one[begin] === other[begin]) begin++;
  let end = 0;
  while (end < one.length - begin && end < other.length - begin && one.at(-1 - end) === other.at(-1 - end)) end++;
  const of = (kind, lines) => lines.map((line) => ({ kind, line }));
  const [gone, come] = [one.slice(begin, one.length - end), other.slice(begin, other.length - end)];
  const middle = gone.length > LINES_MAX || come.length > LINES_MAX
    ? [...of("removed", gone), ...of("added", come)]
    : compared(gone, come);
  return [...of("same", one.slice(0, begin)), ...middle, ...of("same", one.slice(one.length - end))];
}

function compared(one, other) {
  const longest = Array.from({ length: one.length + 1 }, () => new Uint16Array(other.length + 1));
  for (let i = one.length - 1; i >= 0; i--)
    for (let j = other.length - 1; j >= 0; j--)
      longest[i][j] = one[i] === other[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
  const found = [];
  let [i, j] = [0, 0];
  while (i < one.length || j < other.length)
    if (i < one.length && j < other.length && one[i] === other[j]) {
      found.push({ kind: "same", line: one[i] });
      i++;
      j++;
    } else if (j >= other.length || (i < one.length && longest[i + 1][j] >= longest[i][j + 1])) found.push({ kind: "removed", line: one[i++] });
    else found.push({ kind: "added", line: other[j++] });
  return found;
}
