"use strict";
// The verdict of docs/verdict.md in a browser: the text that `realm-lab verdict` prints, computed by the same steps in the same order.
// `constants` has what Python defines (evidence/verdict/page.py). A test compares the texts of 500 random tables.
const constants = JSON.parse(document.getElementById("constants").textContent);
const { alpha, tied, fewestSeeds, fewestForSpread, exactSeeds, resamples, studies } = constants;

class Fault extends Error {}  // a table or a choice that the user can correct
const refuse = (text) => { throw new Fault(text); };
const byOrder = (one, other) => (one < other ? -1 : one > other ? 1 : 0);

// ---- The table: CSV as Python reads it

function readCsv(text, file) {
  const lines = text.replace(/^\uFEFF/, "");
  const first = lines.split("\n", 1)[0];
  const count = (mark) => first.split(mark).length;
  const separator = [",", ";", "\t"].reduce((best, mark) => (count(mark) > count(best) ? mark : best));
  const [head, ...records] = recordsOf(lines, separator);
  const names = (head?.values ?? []).map((name) => name.trim());
  const twice = names.find((name, place) => names.indexOf(name) !== place);
  if (twice !== undefined) refuse(`${file}: two columns are called '${twice}'; rename one`);
  const isNested = (name, place) => constants.nested.includes(name) && records.some(({ values }) => /^\s*\{/.test(values[place]));
  const nested = names.find(isNested);
  if (nested) refuse(`${file}: the settings in column '${nested}' need the command: realm-lab verdict`);
  const rows = [];
  for (const { values: given, line } of records) {
    const values = given.map((value) => value.trim());
    if (!values.some(Boolean)) continue;
    if (values.length !== names.length) refuse(`${file}, line ${line}: ${values.length} values under ${names.length} columns`);
    rows.push({ values: new Map(names.map((name, place) => [name, values[place]])), where: `${file}, line ${line}` });
  }
  if (!rows.length) refuse(`${file}: no runs in it`);
  return { file, names, rows, hasDecimalCommas: separator === ";" };
}

function recordsOf(text, separator) {
  const found = [];
  let values = [], value = "", line = 0, place = 0, state = "start";  // of a value: start, plain, quoted
  const endValue = () => { values.push(value); value = ""; state = "start"; };
  const endRecord = () => {
    if (state !== "start" || values.length) endValue();
    found.push({ values, line });
    values = [];
  };
  for (; place < text.length; place++) {
    const mark = text[place];
    const isEnd = mark === "\n" || (mark === "\r" && text[place + 1] !== "\n");
    if (isEnd) line++;
    if (state === "quoted") {
      if (mark !== '"') value += mark;
      else if (text[place + 1] === '"') { value += mark; place++; }
      else state = "plain";
    } else if (isEnd) endRecord();
    else if (mark === "\r") continue;
    else if (mark === separator) endValue();
    else if (mark === '"' && state === "start") state = "quoted";
    else { value += mark; state = "plain"; }
  }
  if (state !== "start" || values.length) { line++; endRecord(); }
  return found;
}

const isBlank = (text) => constants.blank.includes(text.trim().toLowerCase());

// A number; null for a blank value, NaN and infinity; undefined for other text.
function numberOf(text) {
  if (isBlank(text)) return null;
  const plain = text.trim().replace(/(?<=\d)_(?=\d)/g, "");
  if (/^[+-]?(nan|inf|infinity)$/i.test(plain)) return null;
  if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain)) return undefined;
  return Math.abs(Number(plain)) < constants.largest ? Number(plain) : null;
}

function valueOf(table, row, metric) {
  const text = row.values.get(metric);
  const hasComma = table.hasDecimalCommas && /^\s*[+-]?\d*,\d+(e[+-]?\d+)?\s*$/i.test(text);
  const value = numberOf(hasComma ? text.replace(",", ".") : text);
  return value === undefined ? refuse(`${row.where}: ${metric} is '${text}', no number`) : value;
}

// The exact whole number of "3", "3.0" or "3e0"; null for other text.
function wholeOf(text) {
  const parts = /^[+-]?(\d*)\.?(\d*)(?:e([+-]?\d{1,3}))?$/i.exec(text.trim());
  if (!parts || parts[1] + parts[2] === "") return null;
  const zeros = Number(parts[3] ?? 0) - parts[2].length;
  const digits = parts[1] + parts[2] + "0".repeat(Math.max(zeros, 0));
  const cut = zeros < 0 ? digits.slice(zeros) : "";
  if (/[1-9]/.test(cut)) return null;
  const whole = BigInt(digits.slice(0, digits.length - cut.length) || "0");
  return text.trim()[0] === "-" ? -whole : whole;
}

// ---- The state of a run

const wordOf = (row, column) => row.values.get(column).replace(/[\s_-]+/g, " ").trim().toLowerCase();
function isDone(word) {
  const code = /^exit (?:code )?(\d+)$/.exec(word);
  if (code) return Number(code[1]) === 0;
  return constants.done.includes(word) ? true : constants.notDone.includes(word) ? false : null;
}
const isFinished = (row, column) => !column || constants.noState.includes(wordOf(row, column)) || Boolean(isDone(wordOf(row, column)));

function checkStates(table, column) {
  for (const row of table.rows) {
    const word = wordOf(row, column);
    if (!constants.noState.includes(word) && isDone(word) === null) {
      refuse(`${row.where}: ${column} is '${row.values.get(column)}', and no known state of a run`);
    }
  }
}

function unusedStates(table) {
  const found = new Map();
  for (const name of table.names.filter((one) => new RegExp(`^(?:${constants.stateColumn})$`, "i").test(one))) {
    const words = [...new Set(table.rows.map((row) => wordOf(row, name)))];
    const unfinished = words.filter((word) => !constants.noState.includes(word) && isDone(word) === false);
    if (unfinished.length) found.set(name, unfinished);
  }
  return found;
}

// ---- Sums in the order of NumPy and of math.fsum, so that means have the same last digit

function sum(values, start = 0, count = values.length) {
  if (count < 8) {
    let total = 0;
    for (let i = 0; i < count; i++) total += values[start + i];
    return total;
  }
  if (count <= 128) {
    const parts = Array.from({ length: 8 }, (_, i) => values[start + i]);
    let i = 8;
    for (; i < count - (count % 8); i += 8) for (let j = 0; j < 8; j++) parts[j] += values[start + i + j];
    const [a, b, c, d, e, f, g, h] = parts;
    let total = a + b + (c + d) + (e + f + (g + h));
    for (; i < count; i++) total += values[start + i];
    return total;
  }
  const half = Math.floor(count / 2) - (Math.floor(count / 2) % 8);
  return sum(values, start, half) + sum(values, start + half, count - half);
}
const mean = (values) => sum(values) / values.length;
function deviation(values) {
  const middle = mean(values);
  return Math.sqrt(sum(values.map((value) => (value - middle) ** 2)) / (values.length - 1));
}

function exactSum(values) {  // Shewchuk (1997)
  let parts = [];
  for (let value of values) {
    const kept = [];
    for (let part of parts) {
      if (Math.abs(value) < Math.abs(part)) [value, part] = [part, value];
      const high = value + part, low = part - (high - value);
      if (low) kept.push(low);
      value = high;
    }
    parts = [...kept, value];
  }
  let total = parts.pop() ?? 0, low = 0;
  while (parts.length) {
    const before = total, part = parts.pop();
    total = before + part;
    low = part - (total - before);
    if (low) break;
  }
  const next = parts.at(-1) ?? 0;
  if ((low < 0 && next < 0) || (low > 0 && next > 0)) {  // round half to even
    const twice = total + low * 2;
    if (low * 2 === twice - total) total = twice;
  }
  return total;
}

function median(values) {
  const sorted = [...values].sort((one, other) => one - other), middle = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// ---- Distributions

function logGamma(x) {
  let shift = 1;
  for (; x < 15; x++) shift *= x;
  const y = 1 / (x * x);
  const series = (((((-691 / 360360 * y + 1 / 1188) * y - 1 / 1680) * y + 1 / 1260) * y - 1 / 360) * y + 1 / 12) / x;
  return (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + series - Math.log(shift);
}

// The fraction b(0) + a(1) / (b(1) + a(2) / (b(2) + ...)) by Lentz's method.
function fraction(a, b) {
  const tiny = 1e-300;
  let value = b(0) || tiny, c = value, d = 0;
  for (let i = 1; i < 1e6; i++) {
    d = 1 / (b(i) + a(i) * d || tiny);
    c = b(i) + a(i) / c || tiny;
    value *= c * d;
    if (Math.abs(c * d - 1) < 1e-16) break;
  }
  return value;
}

// P(a, x), the regularised incomplete gamma function.
function gammaShare(a, x) {
  if (x <= 0) return 0;
  const front = Math.exp(a * Math.log(x) - x - logGamma(a));
  if (x > a + 1) return 1 - front / fraction((i) => i * (a - i), (i) => x + 1 - a + 2 * i);
  let term = 1 / a, total = term;
  for (let i = 1; term > total * 1e-17; i++) total += term *= x / (a + i);
  return front * total;
}

// The distribution function of normal numbers (Hart 1968 as in West 2005).
const ABOVE = [3.52624965998911e-2, 0.700383064443688, 6.37396220353165, 33.912866078383, 112.079291497871, 221.213596169931, 220.206867912376];
const BELOW = [8.83883476483184e-2, 1.75566716318264, 16.064177579207, 86.7807322029461, 296.564248779674, 637.333633378831, 793.826512519948, 440.413735824752];
function polynomial(x, factors) {
  let total = 0;
  for (const factor of factors) total = total * x + factor;
  return total;
}
function normalShare(z) {
  if (z > 0) return 1 - normalShare(-z);
  const height = Math.exp(-z * z / 2);
  if (z < -7) return height / [4, 3, 2, 1].reduce((rest, i) => i / rest - z, 0.65 - z) / Math.sqrt(2 * Math.PI);
  return height * polynomial(-z, ABOVE) / polynomial(-z, BELOW);
}

// I_x(a, b), the regularised incomplete beta function.
function betaShare(a, b, x) {
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - betaShare(b, a, 1 - x);
  const front = Math.exp(a * Math.log(x) + b * Math.log1p(-x) + logGamma(a + b) - logGamma(a) - logGamma(b)) / a;
  const term = (i) => {
    const m = Math.floor(i / 2), top = i % 2 ? -(a + m) * (a + b + m) : m * (b - m);
    return top * x / ((a + i - 1) * (a + i));
  };
  return front / fraction(term, () => 1);
}

// The x > 0 with share(x) = p, by Newton's method between bounds.
function quantile(share, density, p, guess, top = Infinity) {
  let low = 0, high = top, x = guess;
  for (let i = 0; i < 200; i++) {
    const excess = share(x) - p;
    if (excess > 0) high = x;
    else low = x;
    let next = x - excess / density(x);
    if (!(next > low && next < high)) next = high === Infinity ? 2 * x : low ? (low + high) / 2 : high / 8;
    if (Math.abs(next - x) <= 2e-16 * x) return next;
    x = next;
  }
  return x;
}

function gammaQuantile(a, p) {
  const z = normalQuantile(p), cube = 1 - 1 / (9 * a) + z / (3 * Math.sqrt(a));
  const guess = a > 1 && cube > 0.1 ? a * cube ** 3 : Math.exp((Math.log(p) + logGamma(a + 1)) / a);
  if (guess < 1e-300) return 0;
  const density = (x) => Math.exp((a - 1) * Math.log(x) - x - logGamma(a));
  return quantile((x) => gammaShare(a, x), density, p, guess);
}

function normalQuantile(p) {
  if (p === 0.5) return 0;
  const tail = Math.min(p, 1 - p), density = (z) => Math.exp(-z * z / 2) / Math.sqrt(2 * Math.PI);
  const z = quantile((x) => -normalShare(-x), density, -tail, Math.sqrt(-2 * Math.log(2 * tail)) || 0.1);
  return p < 0.5 ? -z : z;
}

const studentTail = (t, freedom) => (t < 0 ? 1 - studentTail(-t, freedom) : betaShare(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2);

// The t > 0 that a Student's t of this freedom exceeds with probability `tail`.
function studentQuantile(tail, freedom) {
  const front = Math.exp(logGamma((freedom + 1) / 2) - logGamma(freedom / 2)) / Math.sqrt(freedom * Math.PI);
  const density = (t) => front * (1 + t * t / freedom) ** (-(freedom + 1) / 2);
  return quantile((t) => -studentTail(t, freedom), density, -tail, -normalQuantile(tail));
}

function betaQuantile(a, b, p) {
  const front = logGamma(a + b) - logGamma(a) - logGamma(b);
  const density = (x) => Math.exp(front + (a - 1) * Math.log(x) + (b - 1) * Math.log1p(-x));
  return quantile((x) => betaShare(a, b, x), density, p, a / (a + b), 1);
}

// ---- NumPy's generator PCG64 from the seed of the reports, with its normal numbers (Marsaglia & Tsang 2000)

class Generator {
  constructor() {
    this.state = limbs(constants.state);
    this.increment = limbs(constants.increment);
    this.high = this.low = 0;  // of the last number of 64 bits
    this.kept = 0;  // the upper half of a number whose lower half was used
    this.isHalfUsed = false;
  }

  next64() {
    const { state, increment } = this, [a, b, c, d] = state;
    let carry = 0;
    for (let i = 0; i < 4; i++) {
      let total = increment[i] + carry + lowOf(a, MULTIPLIER[i]);
      if (i > 0) total += highOf(a, MULTIPLIER[i - 1]) + lowOf(b, MULTIPLIER[i - 1]);
      if (i > 1) total += highOf(b, MULTIPLIER[i - 2]) + lowOf(c, MULTIPLIER[i - 2]);
      if (i > 2) total += highOf(c, MULTIPLIER[i - 3]) + lowOf(d, MULTIPLIER[i - 3]);
      state[i] = total >>> 0;
      carry = Math.floor(total / 2 ** 32);
    }
    let high = state[3] ^ state[1], low = state[2] ^ state[0], turn = state[3] >>> 26;
    if (turn >= 32) [high, low, turn] = [low, high, turn - 32];
    this.high = (turn ? high >>> turn | low << (32 - turn) : high) >>> 0;
    this.low = (turn ? low >>> turn | high << (32 - turn) : low) >>> 0;
  }

  // the lower half of a number, and then its upper half
  next32() {
    this.isHalfUsed = !this.isHalfUsed;
    if (!this.isHalfUsed) return this.kept;
    this.next64();
    this.kept = this.high;
    return this.low;
  }

  // uniform in [0, 1)
  share() {
    this.next64();
    return (this.high * 2 ** 21 + (this.low >>> 11)) / 2 ** 53;
  }

  // a whole number below `count` (Lemire 2019)
  below(count) {
    for (;;) {
      const bits = this.next32();
      if (lowOf(bits, count) >= 2 ** 32 % count) return highOf(bits, count);
    }
  }

  normal() {
    for (;;) {
      this.next64();
      const layer = this.low & 255, isNegative = this.low >>> 8 & 1;
      const size = (this.high & 0x1fffffff) * 2 ** 23 + (this.low >>> 9);
      const x = size * ZIGGURAT.widths[layer];
      if (size < ZIGGURAT.limits[layer]) return isNegative ? -x : x;
      if (layer === 0) {
        for (;;) {
          const above = -Math.log1p(-this.share()) / ZIGGURAT.right, other = -Math.log1p(-this.share());
          if (other + other > above * above) return (size / 256) & 1 ? -(ZIGGURAT.right + above) : ZIGGURAT.right + above;
        }
      }
      const { heights } = ZIGGURAT;
      if ((heights[layer - 1] - heights[layer]) * this.share() + heights[layer] < Math.exp(-0.5 * x * x)) return isNegative ? -x : x;
    }
  }
}

function limbs(decimal) {
  const number = BigInt(decimal);
  return [0n, 32n, 64n, 96n].map((shift) => Number(number >> shift & 0xffffffffn));
}
const MULTIPLIER = limbs("47026247687942121848144207491837523525");

// The halves of a product of two numbers of 32 bits.
const lowOf = (a, b) => Math.imul(a, b) >>> 0;
const highOf = (a, b) => Math.floor(((a >>> 16) * b + Math.floor((a & 0xffff) * b / 65536)) / 65536);

const ZIGGURAT = (() => {
  const right = 3.6541528853610088, scale = 2 ** 52;
  const height = (x) => Math.exp(-0.5 * x * x);
  const area = right * height(right) + Math.sqrt(2 * Math.PI) * normalShare(-right);
  const [limits, widths, heights] = [[], [], []];
  let x = right, outer = right;
  limits[0] = Math.floor(right * height(right) / area * scale);
  limits[1] = 0;
  widths[0] = area / height(right) / scale;
  widths[255] = right / scale;
  heights[0] = 1;
  heights[255] = height(right);
  for (let i = 254; i >= 1; i--) {
    x = Math.sqrt(-2 * Math.log(area / x + height(x)));
    limits[i + 1] = Math.floor(x / outer * scale);
    outer = x;
    heights[i] = height(x);
    widths[i] = x / scale;
  }
  return { right, limits, widths, heights };
})();

// ---- Sign flips: statistics/paired.py

const cached = (compute) => {
  const known = new Map();
  return (...key) => {
    if (!known.has(`${key}`)) known.set(`${key}`, compute(...key));
    return known.get(`${key}`);
  };
};

// The signs as rows, the observed ones first: all without mirrors up to 16 pairs, above that the random ones of Python.
const signs = cached((pairs) => {
  const isExact = pairs <= exactSeeds, count = isExact ? 2 ** (pairs - 1) : resamples;
  const rows = new Int8Array(count * pairs).fill(1);
  if (isExact) {
    for (let row = 0; row < count; row++) {
      for (let i = 0; i < pairs; i++) if (row >> (pairs - 1 - i) & 1) rows[row * pairs + i] = -1;
    }
  } else {
    const generator = new Generator();
    for (let i = pairs; i < rows.length; i++) if (generator.below(2)) rows[i] = -1;
  }
  return { count, rows };
});

const unionOf = (tests) => [...new Set(tests.flatMap((test) => [...test.keys()]))].sort(byOrder);
const length = (values) => Math.sqrt(values.reduce((total, value) => total + value * value, 0));

// p of each test (pair -> difference), corrected over all by step-down max-T.
function stepDown(tests) {
  const pairs = unionOf(tests), { count, rows } = signs(pairs.length);
  const scaled = tests.map((test) => {
    const values = pairs.map((pair) => test.get(pair) ?? 0), size = length(values) || 1;
    return Float64Array.from(values, (value) => value / size);
  });
  const statistic = (values, row) => {
    let total = 0;
    for (let i = 0, at = row * values.length; i < values.length; i++) total += values[i] * rows[at + i];
    return Math.abs(total);
  };
  const observed = scaled.map((values) => statistic(values, 0));
  const order = observed.map((_, test) => test).sort((one, other) => observed[one] - observed[other]);
  const reached = tests.map(() => 0);
  for (let row = 0; row < count; row++) {
    let largest = 0;
    for (const test of order) {
      largest = Math.max(largest, statistic(scaled[test], row));
      if (largest >= observed[test] - tied) reached[test]++;
    }
  }
  let corrected = 0;
  for (const test of order.reverse()) reached[test] = corrected = Math.max(corrected, reached[test] / count);
  return reached;
}

const smallestP = (pairs) => (pairs <= exactSeeds ? Math.min(1, 2 ** (1 - pairs)) : 1 / resamples);

function holm(ps) {
  const order = ps.map((_, test) => test).sort((one, other) => ps[one] - ps[other]), adjusted = [];
  let stepped = 0;
  order.forEach((test, place) => { adjusted[test] = Math.min(1, stepped = Math.max(stepped, ps[test] * (ps.length - place))); });
  return adjusted;
}

// ---- False alarms of skewed differences: statistics/calibration.py

const someSigns = cached((pairs) => {
  const all = signs(pairs), most = constants.mostSigns;
  if (all.count <= most) return { count: all.count, rows: Float64Array.from(all.rows) };
  const generator = new Generator(), rows = new Float64Array(most * pairs);
  for (let i = 0; i < most; i++) {
    const edge = Math.floor(i * all.count / most), next = Math.floor((i + 1) * all.count / most);
    const drawn = next - edge === 1 ? edge : edge + generator.below(next - edge), row = i ? drawn : 0;
    rows.set(all.rows.subarray(row * pairs, (row + 1) * pairs), i * pairs);
  }
  return { count: most, rows };
});

// The rates of a family; null if it has too few pairs. `alone`: of each test without correction.
function calibrate(tests) {
  if (Math.max(0, ...tests.map((test) => test.size)) < fewestSeeds) return null;
  const pairs = unionOf(tests), count = pairs.length, flips = someSigns(count);
  const known = tests.map((test) => pairs.map((pair) => test.get(pair)));
  const { mixed, scores } = skewedScores(known);
  const generator = new Generator(), rank = mixed[0].length, alone = tests.map(() => 0);
  const study = tests.map(() => new Float64Array(count)), normal = new Float64Array(rank);
  const values = tests.map(() => new Float64Array(flips.count));
  const allowed = (1 - constants.level) * flips.count;
  let any = 0;
  for (let number = 0; number < studies; number++) {
    for (let pair = 0; pair < count; pair++) {
      for (let i = 0; i < rank; i++) normal[i] = generator.normal();
      mixed.forEach((weights, test) => {
        let score = 0;
        for (let i = 0; i < rank; i++) score += normal[i] * weights[i];
        study[test][pair] = known[test][pair] === undefined ? 0 : scores[test](score);
      });
    }
    study.forEach((deltas, test) => {
      const size = length(deltas) || 1, mine = values[test];
      for (let row = 0, at = 0; row < flips.count; row++) {
        let total = 0;
        for (let pair = 0; pair < count; pair++) total += deltas[pair] * flips.rows[at++];
        mine[row] = Math.abs(total) / size;
      }
    });
    const order = values.map((_, test) => test).sort((one, other) => values[one][0] - values[other][0]);
    const largest = new Float64Array(flips.count), reached = [];
    for (const test of order) {
      const mine = values[test], limit = mine[0] - tied;
      let one = 0, all = 0;
      for (let row = 0; row < flips.count; row++) {
        if (mine[row] > largest[row]) largest[row] = mine[row];
        one += mine[row] >= limit;
        all += largest[row] >= limit;
      }
      if (one <= allowed) alone[test]++;
      reached.push(all);
    }
    if (reached.at(-1) <= allowed) any++;  // step-down: no smaller one is significant without the largest
  }
  return { any: any / studies, alone: alone.map((alarms) => alarms / studies) };
}

// Weights that give normal numbers the correlations of the differences [tests][pairs], and for each test the function from
// a normal score to a difference of its skewness.
function skewedScores(known) {
  const given = known.map((values) => values.filter((value) => value !== undefined));
  const centres = given.map((values) => values.reduce((total, value) => total + value, 0) / values.length);
  const centred = known.map((values, test) => values.map((value) => (value === undefined ? 0 : value - centres[test])));
  const lengths = centred.map(length);
  let mixed = centred.map((values, test) => values.map((value) => value / (lengths[test] || 1)));
  if (known[0].length > Math.max(exactSeeds, known.length)) mixed = triangle(mixed);
  const { widest, grid } = constants;
  const scores = known.map((_, test) => {
    if (lengths[test] <= tied * Math.max(...given[test].map(Math.abs))) return () => 0;
    const skew = skewness(given[test]);
    const ends = Array.from({ length: grid }, (_, i) => pearsonQuantile(2 * widest * i / (grid - 1) - widest, skew));
    return (score) => {
      const place = Math.min(Math.max((score + widest) / (2 * widest) * (grid - 1), 0), grid - 1);
      const low = Math.min(Math.floor(place), grid - 2);
      return ends[low] + (ends[low + 1] - ends[low]) * (place - low);
    };
  });
  return { mixed, scores };
}

// R of the decomposition Q R of columns, transposed: rows of a lower triangle, with the signs of LAPACK's reflections.
function triangle(columns) {
  const left = columns.map((column) => [...column]), size = left.length;
  for (let i = 0; i < size; i++) {
    const tail = left[i].slice(i), norm = length(tail);
    if (length(tail.slice(1)) === 0) continue;
    const beta = tail[0] > 0 ? -norm : norm;
    tail[0] -= beta;
    const scale = 2 / tail.reduce((total, value) => total + value * value, 0);
    for (let j = i; j < size; j++) {
      const dot = tail.reduce((total, value, k) => total + value * left[j][i + k], 0) * scale;
      tail.forEach((value, k) => { left[j][i + k] -= dot * value; });
    }
  }
  return left.map((column, test) => Array.from({ length: size }, (_, i) => (i <= test ? column[i] : 0)));
}

function skewness(values) {
  const count = values.length, largest = Math.max(0, ...values.map(Math.abs));
  if (count < 3 || Math.max(...values) - Math.min(...values) < tied * largest) return 0;
  const middle = mean(values), moment = (power) => mean(values.map((value) => (value - middle) ** power));
  return Math.sqrt((count - 1) * count) / (count - 2) * moment(3) / moment(2) ** 1.5;
}

// The quantile of Pearson's type III distribution at the normal score z.
function pearsonQuantile(z, skew) {
  if (Math.abs(skew) < 0.0063) {  // Cornish & Fisher (1937), exact to 1e-9 for such a skewness
    const second = (z ** 3 - 3 * z) / 16 - (2 * z ** 3 - 5 * z) / 36;
    const third = (z ** 4 - 6 * z ** 2 + 3) / 40 - (z ** 4 - 5 * z ** 2 + 2) / 16 + (12 * z ** 4 - 53 * z ** 2 + 17) / 324;
    return z + (z * z - 1) / 6 * skew + second * skew ** 2 + third * skew ** 3;
  }
  const beta = 2 / skew, shape = beta * beta, share = normalShare(skew > 0 ? z : -z);
  return gammaQuantile(shape, share) / beta - beta;
}

// ---- Power: statistics/power.py

// The true difference, in standard deviations, that this many pairs find with 80 % power; null: they are too few.
const detectableEffect = cached((pairs, tests) => {
  if (pairs < fewestSeeds) return null;
  if (constants.simulated[pairs]) return constants.simulated[pairs][tests - 1];
  const freedom = pairs - 1, critical = studentQuantile((1 - constants.level ** (1 / tests)) / 2, freedom);
  const shifts = Array.from({ length: 50 }, (_, i) => Math.sqrt(pairs * 2 * gammaQuantile(freedom / 2, (i + 0.5) / 50) / freedom));
  const width = 9 / Math.sqrt(2 * freedom), step = (1 + width - Math.max(0, 1 - width)) / 120;
  const points = Array.from({ length: 121 }, (_, i) => Math.max(0, 1 - width) + i * step).filter((spread) => spread > 0);
  const front = Math.log(2) + freedom / 2 * Math.log(freedom / 2) - logGamma(freedom / 2);
  const weights = points.map((s) => step * Math.exp(front + freedom * (Math.log(s) - s * s / 2)) / s);
  const power = (effect) => {
    let total = 0;
    for (const shift of shifts) {
      for (let i = 0; i < points.length; i++) total += weights[i] * normalShare(effect * shift - critical * points[i]);
    }
    return total / shifts.length;
  };
  return root((effect) => power(effect) - constants.power, 0, 4);
});

// The root of an increasing function between bounds, by false position (Illinois).
function root(excess, low, high) {
  let [below, above] = [excess(low), excess(high)], x = low;
  for (let i = 0; i < 100 && high - low > 1e-14; i++) {
    const next = (low * above - high * below) / (above - below);
    if (Math.abs(next - x) < 1e-15) break;
    x = next;
    const found = excess(x);
    if (found === 0) break;
    if (found < 0) [low, below, above] = [x, found, above / 2];
    else [high, above, below] = [x, found, below / 2];
  }
  return x;
}

function neededPairs(deltas, tests) {
  const size = Math.abs(mean(deltas)), spread = deviation(deltas);
  if (!size) return null;
  const isEnough = (pairs) => detectableEffect(pairs, tests) * spread <= size;
  let low = fewestSeeds;
  for (; constants.simulated[low]; low++) if (isEnough(low)) return low;
  let high = constants.mostSeeds + 1;
  while (low < high) {
    const middle = low + Math.floor((high - low) / 2);
    if (isEnough(middle)) high = middle;
    else low = middle + 1;
  }
  return low <= constants.mostSeeds ? low : null;
}

// p of "the true difference is `largest` or more": two one-sided t-tests.
function equivalenceP(deltas, largest) {
  const margin = largest - Math.abs(mean(deltas)), error = deviation(deltas) / Math.sqrt(deltas.length);
  return error ? studentTail(margin / error, deltas.length - 1) : Number(margin <= 0);
}

// ---- Intervals: statistics/intervals.py, statistics/robust.py

function studentInterval(values, level) {
  if (values.length < fewestForSpread) return null;
  const half = studentQuantile((1 - level) / 2, values.length - 1) * deviation(values) / Math.sqrt(values.length);
  return [mean(values) - half, mean(values) + half];
}
const within = (interval, span) => interval && [Math.max(interval[0], -span), Math.min(interval[1], span)];

function interquartileMean(deltas, span) {
  const ordered = [...deltas].sort((one, other) => one - other), count = ordered.length, cut = Math.floor(count / 4);
  if (count < 4) return null;
  const kept = ordered.slice(cut, count - cut);
  const winsorised = ordered.map((value) => Math.min(Math.max(value, kept[0]), kept.at(-1)));
  const error = deviation(winsorised) * Math.sqrt(count) / kept.length;
  const half = studentQuantile((1 - constants.level) / 2, kept.length - 1) * error;
  return { value: mean(kept), interval: within([mean(kept) - half, mean(kept) + half], span) };
}

function probabilityHigher(deltas) {
  const count = deltas.length, tail = (1 - constants.level) / 2;
  if (count < fewestForSpread) return null;
  const above = deltas.filter((value) => value > 0).length + 0.5 * deltas.filter((value) => value === 0).length;
  const low = above ? betaQuantile(above, count - above + 1, tail) : 0;
  const high = above < count ? betaQuantile(above + 1, count - above, 1 - tail) : 1;
  return { value: above / count, interval: [low, high] };
}

// ---- Findings: statistics/family.py

// Paired differences by pair (pair -> value of each); null if they share none.
function compare(cell, baseline) {
  const seeds = [...cell.keys()].filter((pair) => baseline.has(pair)).sort(byOrder);
  if (!seeds.length) return null;
  const deltas = seeds.map((pair) => cell.get(pair) - baseline.get(pair));
  const means = [cell, baseline].map((values) => seeds.reduce((total, pair) => total + values.get(pair), 0) / seeds.length);
  return { deltas, means, bySeed: new Map(seeds.map((pair, place) => [pair, deltas[place]])) };
}

// By cluster: a cluster's value is the sum over its pairs, scaled so that the mean over clusters is the mean over pairs.
function compareClusters(cell, baseline, clusters) {
  const shared = [...cell.keys()].filter((pair) => baseline.has(pair)), members = new Map();
  for (const pair of shared) members.set(clusters.get(pair), [...(members.get(clusters.get(pair)) ?? []), pair]);
  const scale = members.size / Math.max(shared.length, 1);
  const sums = (values) => new Map([...members].map(([name, pairs]) => [name, scale * exactSum(pairs.map((pair) => values.get(pair)))]));
  return compare(sums(cell), sums(baseline));
}

// Add a `finding` to each of a family of { metric, cell, comparison }; return the rates of false alarms.
function judge(compared, delta) {
  const tests = compared.map((one) => one.comparison.bySeed);
  if (!tests.length) return null;
  const corrected = stepDown(tests), calibration = calibrate(tests);
  const alike = compared.filter((one) => delta.has(one.metric.name) && one.comparison.deltas.length >= fewestForSpread);
  const equivalence = holm(alike.map((one) => equivalenceP(one.comparison.deltas, delta.get(one.metric.name))));
  compared.forEach((one, place) => {
    const { deltas, means } = one.comparison, { metric } = one, span = metric.span, size = mean(deltas);
    const bound = delta.get(metric.name) ?? null, level = equivalence[alike.indexOf(one)];
    const found = { metric, deltas, size, seeds: deltas.length, tests: tests.length, bound, correctedP: corrected[place], smallestP: smallestP(deltas.length) };
    found.isSkewed = deltas.length >= fewestSeeds && calibration !== null && calibration.alone[place] > constants.suspect;
    found.isEquivalent = level !== undefined && level <= alpha;
    found.direction = Math.min(...deltas) > 0 ? "higher" : Math.max(...deltas) < 0 ? "lower" : null;
    found.interval = within(studentInterval(deltas, constants.level), span);
    found.equivalenceInterval = within(studentInterval(deltas, constants.equivalenceLevel), span);
    found.interquartile = interquartileMean(deltas, span);
    found.probabilityHigher = probabilityHigher(deltas);
    found.isDifferent = found.correctedP <= alpha;
    found.isAtFloor = means.every((value) => isAtFloor(metric, value));
    one.finding = found;
  });
  return calibration;
}

function isAtFloor({ low, high, better, span }, value) {
  return Number.isFinite(span) && Boolean(better) && (better === "up" ? value - low : high - value) <= constants.floor * span;
}

function kindOf(found) {
  if (found.isDifferent) return found.isRefused ? "refused by the control" : found.size > 0 ? "higher" : "lower";
  if (found.isAtFloor) return "nothing was learned";
  if (found.isEquivalent) return found.isRefused ? "refused by the control" : "equivalent";
  if (found.smallestP <= alpha) return found.bound === null ? "not significant" : "inconclusive";
  return "too few seeds";
}
const isSignificant = (found) => ["higher", "lower"].includes(kindOf(found));

// ---- The verdict on a table: verdict/answer.py

// choices: { metrics: [name], baseline, cell, pair, delta: Map(metric -> size), cluster, control, state }
function verdict(table, choices) {
  const { metrics, baseline, cell, pair, delta, cluster, control, state } = choices;
  for (const name of [cell, pair, ...metrics, ...[cluster, state].filter(Boolean)]) {
    if (!table.names.includes(name)) refuse(`no column '${name}'`);
  }
  if (state) checkStates(table, state);
  const { runs, leftOut } = runsOf(table, choices);
  const names = [...new Set([baseline, ...runs.map((run) => run.cell)])];
  if (!runs.some((run) => run.cell === baseline)) refuse(`no variant '${baseline}'`);
  if (control && (control === baseline || !names.includes(control))) refuse(`no other variant '${control}' for a control`);
  const clusters = cluster ? clustersOf(runs, cluster) : null;
  const made = metrics.map((metric) => {
    const values = new Map(names.map((name) => [name, new Map()]));
    for (const run of runs) values.get(run.cell).set(run.pair, isFinished(run.row, state) ? valueOf(table, run.row, metric) : null);
    return { metric: metricOf(metric, [...values.values()].flatMap((one) => [...one.values()].filter((value) => value !== null))), values };
  });
  for (const { metric } of made) {
    const largest = delta.get(metric.name);
    if (largest !== undefined && !(largest > 0 && largest < Infinity)) refuse(`delta of ${metric.name}: no number above 0`);
    if (largest >= metric.span) refuse(`delta of ${metric.name}: ${general(largest)} is not below its range, ${general(metric.low)} to ${general(metric.high)}`);
  }
  const compared = [];
  for (const { metric, values } of made) {
    for (const name of names.slice(1)) {
      const [one, base] = [name, baseline].map((which) => finite(values.get(which)));
      const comparison = clusters ? compareClusters(one, base, clusters) : compare(one, base);
      if (comparison) compared.push({ metric, cell: name, comparison });
    }
  }
  const [controls, family] = [compared.filter((one) => one.cell === control), compared.filter((one) => one.cell !== control)];
  checkSize(family);
  judge(controls, delta);
  const calibration = judge(family, delta);
  for (const one of family) {
    const found = controls.find((other) => other.metric === one.metric)?.finding;
    one.finding.isRefused = Boolean(control) && !(found && !isSignificant(found) && kindOf(found) !== "too few seeds");
  }
  const answers = made.map(({ metric, values }) => ({ metric, cells: names.map((name) => {
    const mine = finite(values.get(name)), base = finite(values.get(baseline));
    const finding = compared.find((one) => one.metric === metric && one.cell === name)?.finding ?? null;
    if (name === baseline && !mine.size) refuse(`no run of '${baseline}' has a value of ${metric.name}`);
    return {
      cell: name, values: [...mine.values()], finding,
      gap: !mine.size ? "no run has a value" : name !== baseline && !finding ? "cannot be paired" : null,
      missing: [
        ...[...values.get(name)].filter(([, value]) => value === null).map(([one]) => one),
        ...(finding ? [...base.keys()].filter((one) => !values.get(name).has(one)) : []),
      ].sort(byOrder),
      unpaired: [...mine.keys()].filter((one) => !base.has(one)).sort(byOrder),
    };
  }) }));
  return { cell, pair, cluster, control, answers, leftOut, otherStatus: state ? new Map() : unusedStates(table), tests: family.length, calibration };
}

// Refuse a family that a page cannot judge in seconds, or that Python has simulated no power for.
function checkSize(family) {
  const differences = family.length * unionOf(family.map((one) => one.comparison.bySeed)).length;
  const command = "the command has no limit: realm-lab verdict";
  if (differences > constants.mostDifferences) refuse(`${differences} paired differences, and this page judges ${constants.mostDifferences}; ${command}`);
  if (family.length > constants.mostTests) refuse(`${family.length} tests, and this page judges ${constants.mostTests}; ${command}`);
}

const finite = (values) => new Map([...values].filter(([, value]) => value !== null));

// The run of each cell and pair, and those that are left out.
function runsOf(table, { metrics, cell, pair, state }) {
  const leftOut = [], named = [];
  const hasValue = (row) => metrics.map((metric) => valueOf(table, row, metric)).some((value) => value !== null);
  for (const row of table.rows) {
    const blank = [cell, pair].find((name) => !row.values.get(name).trim());
    if (!blank) named.push(row);
    else if (!hasValue(row)) leftOut.push([row.where, `no ${blank}, and no value`]);
    else refuse(`${row.where}: no ${blank}; fill it in, or delete the run`);
  }
  const areWhole = named.every((row) => wholeOf(row.values.get(pair)) !== null);
  const found = new Map();
  for (const row of named) {
    const shared = row.values.get(pair), run = { cell: row.values.get(cell), pair: areWhole ? wholeOf(shared) : shared, row };
    const open = [run.cell, `${run.pair}`].find((text) => text.includes("${"));
    if (open) refuse(`${row.where}: ${open} has an interpolation that the configuration does not resolve`);
    const key = JSON.stringify([run.cell, `${run.pair}`]);
    found.set(key, [...(found.get(key) ?? []), run]);
  }
  const runs = [...found.values()].map((same) => {
    const done = same.filter((run) => isFinished(run.row, state) && hasValue(run.row));
    if (done.length > 1) refuse(`${done[1].row.where}: ${cell} ${done[1].cell} and ${pair} ${done[1].pair} are also in ${done[0].row.where}; keep one`);
    const kept = (done.length ? done : same)[0];
    const why = `did not finish; another run of ${cell} ${kept.cell}, ${pair} ${kept.pair} ${done.length ? "did" : "is named"}`;
    leftOut.push(...same.filter((run) => run !== kept).map((run) => [run.row.where, why]));
    return kept;
  });
  return { runs, leftOut };
}

function clustersOf(runs, column) {
  const found = new Map();
  for (const { pair, row } of runs) {
    const name = row.values.get(column);
    if (!name.trim()) refuse(`${row.where}: no ${column}`);
    if (!found.has(pair)) found.set(pair, name);
    if (found.get(pair) !== name) refuse(`${row.where}: ${column} of ${pair} is ${name}, and ${found.get(pair)} in another row`);
  }
  return found;
}

// A metric of realm_lab if all values are within its bounds, else one without bounds; its digits resolve the spread.
function metricOf(name, values) {
  const middle = values.length ? median(values) : 0;
  const away = values.filter((value) => value !== middle).map((value) => Math.abs(value - middle));
  const spread = away.length ? median(away) : 0, place = spread ? -exponentOf(spread) : null;
  const known = Object.hasOwn(constants.metrics, name) ? constants.metrics[name] : null;
  if (known && values.every((value) => (known.low === null || known.low <= value) && (known.high === null || value <= known.high))) {
    const span = known.low === null || known.high === null ? Infinity : known.high - known.low;
    return { ...known, name, span, digits: Math.max(known.digits, place ?? 0) };
  }
  return { name, low: null, high: null, span: Infinity, better: "", unit: "", digits: place === null ? 3 : Math.max(place + 2, 0) };
}

// floor(log10(value)) as Python rounds it: just below a power of ten it is that power.
function exponentOf(value) {
  const [digits, exponent] = value.toExponential(40).split("e"), above = Number(exponent) + 1;
  const missing = Number(BigInt(digits.replace(".", "")) - 10n ** 41n) / 1e41 / Math.LN10;
  return above + missing === above ? above : above - 1;
}

// ---- Words: statistics/wording.py, verdict/answer.py

const NOTHING = "–", MINUS = "−";

// Round half to even, as Python: `toFixed` rounds it up.
function fixed(value, digits) {
  if (digits > 60) refuse("values this small need the command: realm-lab verdict");
  const size = Math.abs(value), exact = size.toFixed(digits + 40);
  let text = size.toFixed(digits);
  if (/^50*$/.test(exact.slice(-40)) && size < 1e21) {
    const down = exact.slice(0, digits ? -40 : -41);
    if ("02468".includes(down.at(-1))) text = down;
  }
  return (value < 0 && Number(text) ? MINUS : "") + text;
}
const number = (value, digits = 3) => (value === null || !Number.isFinite(value) ? NOTHING : fixed(value, digits));
const pValue = (value) => (value !== null && value < 0.0005 ? "< 0.001" : number(value));
const percent = (share) => `${number(100 * share, 1)} %`;
function signed(value, digits) {
  const text = number(value, digits);
  return text[0] === MINUS || text[0] === NOTHING || /^[0.]*$/.test(text) ? text : `+${text}`;
}
const spanOf = (found, digits, text = number) => (found ? `${text(found[0], digits)} to ${text(found[1], digits)}` : NOTHING);
const estimate = (found, digits) => (found ? `${number(found.value, digits)} (${spanOf(found.interval, digits)})` : NOTHING);

// A number with six digits, as Python's format g.
function general(value) {
  const [digits, exponent] = value.toExponential(5).split("e"), power = Number(exponent);
  if (power >= -4 && power < 6) return String(Number(value.toPrecision(6)));
  return `${Number(digits)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

function inShort(found) {
  const kind = kindOf(found), skewed = found.isSkewed && isSignificant(found) ? ", skewed" : "";
  if (kind === "too few seeds") {
    if (found.seeds === 1) return "one seed";
    return found.direction ? `${found.direction} in ${found.seeds === 2 ? "both" : `all ${found.seeds}`} seeds` : kind;
  }
  if (isSignificant(found) && found.isEquivalent) return `${kind}, within ±${`${general(found.bound)} ${found.metric.unit}`.trim()}${skewed}`;
  return kind + skewed;
}

function detectable({ seeds, deltas, tests, metric }) {
  if (seeds < fewestSeeds) return NOTHING;
  const found = detectableEffect(seeds, tests) * deviation(deltas);
  return found > metric.span ? "none possible" : number(found, metric.digits);
}

function needed({ seeds, deltas, tests }) {
  return seeds < constants.fewestForProjection ? NOTHING : String(neededPairs(deltas, tests) ?? `> ${constants.mostSeeds}`);
}

function meanSd(values, digits) {
  const middle = number(values.length ? mean(values) : null, digits);
  return values.length < fewestForSpread ? middle : `${middle} ± ${number(deviation(values), digits)}`;
}

// The table of a metric: rows of [column, text].
function rowsOf(answer, { metric, cells }) {
  const { digits } = metric;
  const rows = cells.map(({ cell, values, finding, gap }, place) => {
    const shown = (text) => (finding ? text(finding) : NOTHING);
    const row = [["variant", cell], ["n", String(finding ? finding.seeds : values.length)], ["mean ± sd", meanSd(values, digits)]];
    row.push(["difference", shown((one) => signed(one.size, digits))]);
    row.push(["95 % interval", shown((one) => spanOf(one.interval, digits, signed))]);
    row.push(["p (smallest)", shown((one) => `${pValue(one.correctedP)} (${pValue(one.smallestP)})`)]);
    row.push(["finding", finding ? inShort(finding) : place ? gap ?? "" : "baseline"]);
    row.push(["minimum detectable difference", shown(detectable)]);
    row.push(["pairs needed", shown(needed)]);
    row.push(["90 % interval", shown((one) => spanOf(one.bound === null ? null : one.equivalenceInterval, digits, signed))]);
    row.push(["interquartile mean (95 %)", shown((one) => estimate(one.interquartile, digits))]);
    row.push(["P(higher) (95 %)", shown((one) => estimate(one.probabilityHigher, 2))]);
    return row;
  });
  const known = new Set(rows.flat().filter(([, text]) => text !== NOTHING).map(([name]) => name));
  return rows.map((row) => row.filter(([name]) => known.has(name)));
}

const listed = (names) => names.slice(0, constants.pairsShown).join(", ") + (names.length > constants.pairsShown ? ", ..." : "");

function notesOf(answer, { cells }) {
  const notes = [];
  for (const { cell, missing, gap, unpaired } of cells) {
    if (missing.length) notes.push(`${cell}: no value for ${answer.pair} ${listed(missing)}; a failed run can bias the result.`);
    if (gap === "cannot be paired") notes.push(`${cell} cannot be paired: it shares no ${answer.pair} with the baseline. Run both with the same.`);
    else if (unpaired.length) notes.push(`${cell}: left out, as the baseline lacks it: ${answer.pair} ${listed(unpaired)}.`);
  }
  return notes;
}

function notesOfTable(answer) {
  const reasons = new Map();
  for (const [run, why] of answer.leftOut) reasons.set(why, [...(reasons.get(why) ?? []), run]);
  const notes = [...reasons].map(([why, runs]) => `Left out: ${listed(runs)} (${why}).`);
  for (const [name, words] of answer.otherStatus) notes.push(`Column '${name}' has ${listed(words)}: these runs count, as --state ${name} is not given.`);
  return notes;
}

function sentenceOf({ metric, cells: [base, ...others] }, name = (text) => text) {
  const alike = new Map();  // finding -> its cells
  for (const one of others) {
    const finding = one.finding ? inShort(one.finding) : one.gap;
    alike.set(finding, [...(alike.get(finding) ?? []), name(one.cell)]);
  }
  const findings = [...alike].map(([finding, cells]) => `${finding}: ${cells.join(", ")}`).join("; ");
  return `Compared with ${name(base.cell)} (${number(mean(base.values), metric.digits)}): ${findings}.`;
}

function legendOf({ pair, cluster, control, tests, calibration }, name = (text) => text) {
  const { any } = calibration ?? {}, { legend } = constants, lines = [];
  const groups = cluster ? legend.clusters.replace("{}", () => name(cluster)) : "";
  lines.push(legend.tests.replace("{pair}", () => name(pair)).replace("{clusters}", () => groups).replace("{tests}", `${tests} test${tests === 1 ? "" : "s"}`));
  if (control) lines.push(legend.control.replace("{}", () => name(control)));
  if (calibration) {
    const error = Math.sqrt(Math.max(any * (1 - any), 1 / studies) / studies);
    lines.push(legend.alarms.replace("{rate}", percent(any)).replace("{error}", percent(error)));
  }
  return lines;
}

// The text that `realm-lab verdict` prints.
function markdownOf(answer) {
  const plain = (text) => text.trim().split(/\s+/).join(" ").replace(/([\\`*<[\]|])/g, "\\$1");
  const lines = [];
  for (const one of answer.answers) {
    const rows = rowsOf(answer, one), line = (texts) => `| ${texts.map(plain).join(" | ")} |`;
    lines.push(`## ${plain(one.metric.name)}`, "", sentenceOf(one, plain), "", line(rows[0].map(([name]) => name)));
    lines.push(`|${"---|".repeat(rows[0].length)}`, ...rows.map((row) => line(row.map(([, text]) => text))));
    lines.push("", ...notesOf(answer, one).map((note) => `- ${plain(note)}`), "");
  }
  const notes = notesOfTable(answer).map((note) => `- ${plain(note)}`);
  if (notes.length) lines.push(...notes, "");
  return [...lines, ...legendOf(answer, plain)].join("\n") + "\n";
}

// ---- The page

const find = (id) => document.getElementById(id);
function element(name, text = "", children = []) {
  const made = document.createElement(name);
  made.textContent = text;  // never as HTML: all texts of the table come through here
  made.append(...children);
  return made;
}

let table = null, shown = "";

function choose(select, names, chosen, none) {
  const options = names.map((name) => Object.assign(element("option", name), { value: `=${name}` }));
  if (none) options.unshift(Object.assign(element("option", none), { value: "" }));
  select.replaceChildren(...options);
  if (names.includes(chosen)) select.value = `=${chosen}`;
}
const chosen = (id) => find(id).value.slice(1);
const valuesOf = (column) => [...new Set(table.rows.map((row) => row.values.get(column)).filter((text) => text.trim()))];

function take(text, file) {
  table = null;
  find("choices").hidden = true;
  attempt(() => {
    table = readCsv(text, file);
    const isNumeric = (name) => valuesOf(name).some((value) => typeof numberOf(value.replace(",", ".")) === "number");
    const numeric = table.names.filter(isNumeric), { names } = table;
    const cell = names.find((name) => name === "cell") ?? names.find((name) => !numeric.includes(name)) ?? names[0];
    const pair = names.find((name) => /^seed$/i.test(name)) ?? names.find((name) => /seed|fold|question/i.test(name)) ?? names[1] ?? names[0];
    choose(find("cell"), names, cell);
    choose(find("pair"), names, pair);
    choose(find("cluster"), names, "", "none");
    choose(find("state"), names, "", "none");
    const metrics = numeric.filter((name) => name !== cell && name !== pair);
    find("metrics").replaceChildren(...metrics.map((name) => {
      const box = Object.assign(element("input"), { type: "checkbox", name: "metric", value: name, checked: metrics.length === 1 });
      const size = Object.assign(element("input"), { inputMode: "decimal", size: 6, autocomplete: "off", ariaLabel: `delta of ${name}` });
      size.dataset.metric = name;
      return element("div", "", [element("label", "", [box, ` ${name}`]), "within ± ", size]);
    }));
    nameCells();
    find("file").textContent = `${file}: ${table.rows.length} rows.`;
    find("choices").hidden = false;
    judgeTable();
  });
}

function nameCells() {
  const cells = valuesOf(chosen("cell"));
  choose(find("baseline"), cells, chosen("baseline"));
  choose(find("control"), cells, chosen("control"), "none");
}

function choicesMade() {
  const metrics = [...document.querySelectorAll("[name=metric]:checked")].map((box) => box.value), delta = new Map();
  for (const { value, dataset } of document.querySelectorAll("[data-metric]")) {
    if (!value.trim() || !metrics.includes(dataset.metric)) continue;
    delta.set(dataset.metric, numberOf(value) ?? refuse(`delta of ${dataset.metric}: '${value}' is no number`));
  }
  const names = Object.fromEntries(["baseline", "cell", "pair", "cluster", "control", "state"].map((id) => [id, chosen(id)]));
  return { ...names, metrics, delta };
}

function commandOf({ metrics, delta, ...names }) {
  const quote = (text) => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const parts = [quote(table.file), ...metrics.map((name) => `--metric ${quote(name)}`)];
  parts.push(...Object.entries(names).filter(([, value]) => value).map(([flag, value]) => `--${flag} ${quote(value)}`));
  parts.push(...[...delta].map(([name, size]) => `--delta ${quote(`${name}=${size}`)}`));
  return `realm-lab verdict ${parts.join(" ")}`;
}

function attempt(action) {
  find("fault").textContent = "";
  find("answer").replaceChildren();
  find("output").hidden = true;
  try {
    action();
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    find("fault").textContent = `${error.message}.`;
  }
}

function judgeTable() {
  if (!table) return;
  attempt(() => {
    const choices = choicesMade();
    if (!choices.metrics.length) refuse("Choose a metric");
    const answer = verdict(table, choices);
    shown = markdownOf(answer);
    find("answer").replaceChildren(...answer.answers.flatMap((one) => sectionOf(answer, one)), ...closing(answer));
    find("command").textContent = commandOf(choices);
    find("output").hidden = false;
  });
}

function sectionOf(answer, one) {
  const rows = rowsOf(answer, one);
  const head = element("tr", "", rows[0].map(([name]) => Object.assign(element("th", name), { scope: "col" })));
  const lines = rows.map((row) => element("tr", "", row.map(([name, text], place) => {
    const made = element(place ? "td" : "th", text);
    if (place) made.dataset.label = name;
    else made.scope = "row";
    return made;
  })));
  const parts = [element("thead", "", [head]), element("tbody", "", lines)];
  const scroll = Object.assign(element("div", "", [element("table", "", parts)]), { className: "scroll", tabIndex: 0 });
  const notes = notesOf(answer, one).map((note) => element("li", note));
  return [element("h2", one.metric.name), element("p", sentenceOf(one)), scroll, ...(notes.length ? [element("ul", "", notes)] : [])];
}

function closing(answer) {
  const notes = notesOfTable(answer).map((note) => element("li", note));
  const lines = legendOf(answer).map((line) => Object.assign(element("p", line), { className: "note" }));
  return [...(notes.length ? [element("ul", "", notes)] : []), ...lines];
}

async function takeFile(file) {
  try {
    take(new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer()), file.name);
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    attempt(() => refuse(`${file.name}: not a text in UTF-8; export it as CSV in UTF-8`));
  }
}

find("choose").addEventListener("change", (event) => { if (event.target.files.length) takeFile(event.target.files[0]); });
find("paste").addEventListener("input", (event) => { if (event.target.value.trim()) take(event.target.value, "pasted.csv"); });
find("choices").addEventListener("submit", (event) => event.preventDefault());
find("choices").addEventListener("change", (event) => {
  if (event.target.id === "cell") nameCells();
  judgeTable();
});
find("copy").addEventListener("click", async () => {
  const area = find("markdown");
  area.value = shown;
  area.hidden = false;
  area.select();
  await navigator.clipboard?.writeText(shown).catch(() => {});  // where a browser denies it, the text is selected
});
addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("over"); });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("over"); });
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  if (event.dataTransfer.files.length) takeFile(event.dataTransfer.files[0]);
});
