/** FormData and its multipart encoding. https://www.rfc-editor.org/rfc/rfc7578 */
const { Blob, File, concatBytes } = require('./blob.cjs')
const { utf8Encode } = require('./encoding.cjs')

class FormData {
  #entries = []

  append(name, value, filename) {
    this.#entries.push(entry(name, value, filename))
  }

  set(name, value, filename) {
    this.delete(name)
    this.append(name, value, filename)
  }

  delete(name) {
    this.#entries = this.#entries.filter(([key]) => key !== String(name))
  }

  get(name) {
    return this.getAll(name)[0] ?? null
  }

  getAll(name) {
    return this.#entries.filter(([key]) => key === String(name)).map(([, value]) => value)
  }

  has(name) {
    return this.getAll(name).length > 0
  }

  forEach(callback, self) {
    for (const [name, value] of this) callback.call(self, value, name, this)
  }

  *entries() {
    for (const pair of this.#entries) yield [...pair]
  }

  *keys() {
    for (const [name] of this) yield name
  }

  *values() {
    for (const [, value] of this) yield value
  }

  [Symbol.iterator]() {
    return this.entries()
  }
}

function entry(name, value, filename) {
  if (!(value instanceof Blob)) return [String(name), String(value)]
  if (value instanceof File && filename === undefined) return [String(name), value]
  const options = { type: value.type }
  return [String(name), new File([value], filename ?? 'blob', options)]
}

function quoted(text) {
  return `"${text.replaceAll('"', '%22').replaceAll('\r', '%0D').replaceAll('\n', '%0A')}"`
}

async function encodeFormData(form) {
  const boundary = `----botica${host.sync('uuid', '{}').replaceAll('-', '')}`
  const parts = []
  for (const [name, value] of form) {
    const isFile = value instanceof Blob
    const file = isFile ? `; filename=${quoted(value.name)}` : ''
    const type = isFile ? `Content-Type: ${value.type || 'application/octet-stream'}\r\n` : ''
    const disposition = `Content-Disposition: form-data; name=${quoted(name)}${file}`
    parts.push(utf8Encode(`--${boundary}\r\n${disposition}\r\n${type}\r\n`))
    parts.push(isFile ? await value.bytes() : utf8Encode(value))
    parts.push(utf8Encode('\r\n'))
  }
  parts.push(utf8Encode(`--${boundary}--\r\n`))
  return { bytes: concatBytes(parts), type: `multipart/form-data; boundary=${boundary}` }
}

module.exports = { FormData, encodeFormData }
