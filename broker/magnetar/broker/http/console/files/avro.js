// Avro's binary encoding, decoded by the schema that it was written with, to text in the manner of
// JSON. Schemas and data are strangers': depth and the number of values are bounded.

const DEPTH_MAX = 64;
const VALUES_MAX = 20_000;
const TEXT = new TextDecoder("utf-8");

/** The value as indented text. Throws if the bytes are not what the schema says. */
export function decodeAvro(schema, bytes) {
  const decoder = new Decoder(bytes);
  const value = decoder.value(decoder.learn(schema, ""), 0, "");
  if (decoder.at !== bytes.length) throw new Error(`${bytes.length - decoder.at} bytes are left over`);
  return written(value, 0);
}

class Decoder {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
    this.count = 0;
    this.names = new Map();
  }

  /** Note the named types of a schema, by full name. */
  learn(schema, space, depth = 0) {
    if (depth > DEPTH_MAX) throw new Error("the schema is too deep");
    if (Array.isArray(schema)) for (const each of schema) this.learn(each, space, depth + 1);
    else if (schema && typeof schema === "object") {
      let inner = space;
      if (typeof schema.name === "string" && ["record", "error", "enum", "fixed"].includes(schema.type)) {
        const full = schema.name.includes(".") ? schema.name : qualified(schema.name, schema.namespace ?? space);
        inner = full.includes(".") ? full.slice(0, full.lastIndexOf(".")) : "";
        this.names.set(full, { schema, space: inner });
      }
      for (const field of Array.isArray(schema.fields) ? schema.fields : []) this.learn(field.type, inner, depth + 1);
      for (const part of [schema.items, schema.values]) if (part) this.learn(part, inner, depth + 1);
      if (schema.type && typeof schema.type === "object") this.learn(schema.type, inner, depth + 1);
    }
    return schema;
  }

  take(length) {
    if (!(length >= 0) || this.at + length > this.bytes.length) throw new Error("the data ends early");
    this.at += length;
    return this.at - length;
  }

  long() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = this.bytes[this.take(1)];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return (value >> 1n) ^ -(value & 1n);
    }
    throw new Error("a number that does not end");
  }

  slice() {
    const length = Number(this.long());
    const start = this.take(length);
    return this.bytes.subarray(start, start + length);
  }

  value(schema, depth, space) {
    if (depth > DEPTH_MAX) throw new Error("the data is too deep");
    if (++this.count > VALUES_MAX) throw new Error("there are too many values");
    if (Array.isArray(schema)) {
      const index = Number(this.long());
      if (!(index >= 0 && index < schema.length)) throw new Error(`branch ${index} of a union of ${schema.length}`);
      return this.value(schema[index], depth + 1, space);
    }
    if (typeof schema === "string") return this.named(schema, depth, space);
    if (!schema || typeof schema !== "object") throw new Error("a schema that is none");
    const type = schema.type;
    if (type && typeof type === "object") return this.value(type, depth + 1, space);
    if (type === "record" || type === "error") return this.record(schema, depth, space);
    if (type === "enum") return symbol(schema, Number(this.long()));
    if (type === "fixed") {
      const start = this.take(Number(schema.size));
      return hex(this.bytes.subarray(start, this.at));
    }
    if (type === "array") return this.blocks((into) => into.push(this.value(schema.items, depth + 1, space)), []);
    if (type === "map")
      return this.blocks((into) => into.push([TEXT.decode(this.slice()), this.value(schema.values, depth + 1, space)]), new Pairs());
    return this.named(type, depth, space);
  }

  record(schema, depth, space) {
    const inner = schema.namespace ?? (String(schema.name).includes(".") ? schema.name.slice(0, schema.name.lastIndexOf(".")) : space);
    const found = new Pairs();
    for (const field of schema.fields) found.push([String(field.name), this.value(field.type, depth + 1, inner)]);
    return found;
  }

  blocks(one, into) {
    for (;;) {
      let left = this.long();
      if (left === 0n) return into;
      if (left < 0n) {
        this.long(); // the bytes of the block
        left = -left;
      }
      if (left > BigInt(VALUES_MAX)) throw new Error("there are too many values");
      for (; left > 0n; left--) one(into);
      // Values of no bytes would never end by themselves.
      if (into.length > VALUES_MAX) throw new Error("there are too many values");
    }
  }

  named(name, depth, space) {
    switch (name) {
      case "null": return null;
      case "boolean": return this.bytes[this.take(1)] !== 0;
      case "int":
      case "long": return this.long();
      case "float": return this.view.getFloat32(this.take(4), true);
      case "double": return this.view.getFloat64(this.take(8), true);
      case "bytes": return hex(this.slice());
      case "string": return TEXT.decode(this.slice());
      default: {
        const known = this.names.get(qualified(name, space)) || this.names.get(name);
        if (!known) throw new Error(`the schema does not say what ${name} is`);
        return this.value(known.schema, depth + 1, known.space);
      }
    }
  }
}

/** Names and values, in the order of the schema, whatever the names are. */
class Pairs extends Array {}

const qualified = (name, space) => (name.includes(".") || !space ? name : `${space}.${name}`);

function symbol(schema, index) {
  if (!(index >= 0 && index < schema.symbols.length)) throw new Error(`symbol ${index} of ${schema.symbols.length}`);
  return String(schema.symbols[index]);
}

const hex = (bytes) => `0x${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;

function written(value, depth) {
  const inside = "  ".repeat(depth + 1);
  const end = `\n${"  ".repeat(depth)}`;
  if (value instanceof Pairs)
    return value.length ? `{${Array.from(value, ([name, each]) => `\n${inside}${JSON.stringify(name)}: ${written(each, depth + 1)}`).join(",")}${end}}` : "{}";
  if (Array.isArray(value)) return value.length ? `[${value.map((each) => `\n${inside}${written(each, depth + 1)}`).join(",")}${end}]` : "[]";
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}
