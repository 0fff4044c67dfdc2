/**
 * HL7 version 2 messages in ER7 form. Escape sequences stay as they are, so parsing and printing a
 * message gives the same text, with CR line ends. https://www.hl7.org/implement/standards/product_brief.cfm?product_id=185
 */

const { formatHl7DateTime } = require('./hl7-datetime.cjs')

const ackTexts = {
  AA: 'OK',
  AE: 'Application Error',
  AR: 'Application Reject',
  CA: 'Commit Accept',
  CE: 'Commit Error',
  CR: 'Commit Reject',
}

/** A header may omit separators; a missing one never splits. */
function split(text, separator) {
  return separator === '' ? [text] : text.split(separator)
}

function isIndex(value) {
  return Number.isInteger(value) && value >= 0
}

function grow(list, index, make) {
  while (list.length <= index) list.push(make())
}

class Hl7Context {
  constructor(
    segmentSeparator = '\r',
    fieldSeparator = '|',
    componentSeparator = '^',
    repetitionSeparator = '~',
    escapeCharacter = '\\',
    subcomponentSeparator = '&',
  ) {
    this.segmentSeparator = segmentSeparator
    this.fieldSeparator = fieldSeparator
    this.componentSeparator = componentSeparator
    this.repetitionSeparator = repetitionSeparator
    this.escapeCharacter = escapeCharacter
    this.subcomponentSeparator = subcomponentSeparator
  }

  getMsh1() {
    return this.fieldSeparator
  }

  getMsh2() {
    const { componentSeparator, repetitionSeparator, escapeCharacter, subcomponentSeparator } = this
    return componentSeparator + repetitionSeparator + escapeCharacter + subcomponentSeparator
  }
}

/** MSH-1 is the character after the name; MSH-2 is the text before its next occurrence. */
function readContext(text) {
  const fieldSeparator = text.charAt(3)
  const encoding = fieldSeparator === '' ? '' : text.slice(4).split(/[\r\n]/, 1)[0]
  const characters = split(encoding, fieldSeparator)[0]
  return new Hl7Context('\r', fieldSeparator, ...[0, 1, 2, 3].map((at) => characters.charAt(at)))
}

class Hl7Field {
  constructor(components, context = new Hl7Context()) {
    this.context = context
    this.components = components
  }

  static parse(text, context = new Hl7Context()) {
    const repetitions = split(String(text), context.repetitionSeparator)
    return new Hl7Field(
      repetitions.map((repetition) => split(repetition, context.componentSeparator)),
      context,
    )
  }

  /** 0-based component; kept for old bots. */
  get(component, subcomponent, repetition = 0) {
    return this.getComponent(component + 1, subcomponent, repetition)
  }

  /** 1-based component, 0-based subcomponent and repetition; empty text when absent. */
  getComponent(component, subcomponent, repetition = 0) {
    const text = this.components[repetition]?.[component - 1] ?? ''
    if (subcomponent === undefined) return text
    return split(text, this.context.subcomponentSeparator)[subcomponent] ?? ''
  }

  /** Indexes as in `getComponent`; adds missing items before it. False for an invalid index. */
  setComponent(component, value, subcomponent, repetition = 0) {
    if (!isIndex(component - 1) || !isIndex(repetition)) return false
    if (subcomponent !== undefined && !isIndex(subcomponent)) return false
    grow(this.components, repetition, () => [''])
    const components = this.components[repetition]
    grow(components, component - 1, () => '')
    if (subcomponent === undefined) {
      components[component - 1] = value
      return true
    }
    const parts = split(components[component - 1], this.context.subcomponentSeparator)
    grow(parts, subcomponent, () => '')
    parts[subcomponent] = value
    components[component - 1] = parts.join(this.context.subcomponentSeparator)
    return true
  }

  toString() {
    const { componentSeparator, repetitionSeparator } = this.context
    return this.components.map((list) => list.join(componentSeparator)).join(repetitionSeparator)
  }
}

class Hl7Segment {
  constructor(fields, context = new Hl7Context()) {
    this.context = context
    this.fields = fields.map((field) =>
      typeof field === 'string' ? Hl7Field.parse(field, context) : field,
    )
    this.name = this.fields[0]?.getComponent(1) ?? ''
  }

  static parse(text, context = new Hl7Context()) {
    return new Hl7Segment(split(String(text), context.fieldSeparator), context)
  }

  /** 0-based position in the text, including the name; kept for old bots. */
  get(index) {
    return this.fields[index]
  }

  /** Field by its HL7 number: MSH-1 is the field separator itself, so MSH counts one higher. */
  getField(index) {
    if (this.name !== 'MSH' || index < 1) return this.fields[index]
    if (index === 1) return new Hl7Field([[this.context.getMsh1()]], this.context)
    if (index === 2) return new Hl7Field([[this.context.getMsh2()]], this.context)
    return this.fields[index - 1]
  }

  getComponent(field, component, subcomponent, repetition = 0) {
    return this.getField(field)?.getComponent(component, subcomponent, repetition) ?? ''
  }

  /** Sets a field by its HL7 number and adds empty ones before it; MSH-1 and MSH-2 cannot be set. */
  setField(index, value) {
    if (!isIndex(index)) return false
    const isHeader = this.name === 'MSH'
    if (isHeader && (index === 1 || index === 2)) return false
    const at = isHeader && index > 2 ? index - 1 : index
    grow(this.fields, at, () => new Hl7Field([['']], this.context))
    this.fields[at] = typeof value === 'string' ? Hl7Field.parse(value, this.context) : value
    return true
  }

  setComponent(field, component, value, subcomponent, repetition = 0) {
    if (this.name === 'MSH' && (field === 1 || field === 2)) return false
    const found = this.getField(field)
    return found === undefined
      ? false
      : found.setComponent(component, value, subcomponent, repetition)
  }

  toString() {
    return this.fields.map(String).join(this.context.fieldSeparator)
  }
}

class Hl7Message {
  constructor(segments, context = new Hl7Context()) {
    this.context = context
    this.segments = segments
  }

  /** Reads ER7 text; segments may end in CR, LF or both. */
  static parse(source) {
    // Files often start with a byte order mark, which is not part of the text.
    const text = typeof source === 'string' ? source.replace(/^\ufeff/, '') : ''
    if (!text.startsWith('MSH')) throw new Error('Invalid HL7 message')
    const context = readContext(text)
    const lines = text.replace(/[\r\n]+$/, '').split(/[\r\n]+/)
    const segments = lines.map((line) => Hl7Segment.parse(line, context))
    return new Hl7Message(segments, context)
  }

  get header() {
    return this.segments[0]
  }

  /** The segment at a place from 0, or the first with a name. */
  getSegment(index) {
    if (typeof index === 'number') return this.segments[index]
    return this.segments.find((segment) => segment.name === index)
  }

  getAllSegments(name) {
    return this.segments.filter((segment) => segment.name === name)
  }

  get(index) {
    return this.getSegment(index)
  }

  getAll(name) {
    return this.getAllSegments(name)
  }

  /** Replaces a segment, or appends beyond the end. The header stays first and unique. */
  setSegment(index, segment) {
    const at =
      typeof index === 'number'
        ? Math.min(index, this.segments.length)
        : this.segments.findIndex((found) => found.name === index)
    if (!isIndex(at) || (at === 0) !== (segment.name === 'MSH')) return false
    this.segments[at] = segment
    return true
  }

  /** The acknowledgment, with sender and receiver swapped. https://hl7-definition.caristix.com/v2/HL7v2.5.1/TriggerEvents/ACK */
  buildAck({ ackCode = 'AA', errSegment } = {}) {
    const text = ackTexts[ackCode]
    if (text === undefined) throw new Error(`Unknown acknowledgment code "${ackCode}"`)
    const { context } = this
    const header = this.getSegment('MSH')
    const field = (index) => header?.getField(index)?.toString() ?? ''
    const event = header?.getComponent(9, 2) ?? ''
    const structure = header?.getComponent(9, 3) ?? ''
    const type = event === '' ? ['ACK'] : structure === '' ? ['ACK', event] : ['ACK', event, 'ACK']
    const now = new Date()
    const msh = [
      'MSH',
      context.getMsh2(),
      field(5),
      field(6),
      field(3),
      field(4),
      formatHl7DateTime(now),
      '',
      type.join(context.componentSeparator),
      String(now.getTime()),
      'P',
      field(12) || '2.5.1',
    ]
    const segments = [
      new Hl7Segment(msh, context),
      new Hl7Segment(['MSA', ackCode, field(10), text], context),
    ]
    if (errSegment !== undefined) segments.push(errSegment)
    return new Hl7Message(segments, context)
  }

  toString() {
    return this.segments.map(String).join(this.context.segmentSeparator)
  }
}

module.exports = { Hl7Context, Hl7Field, Hl7Message, Hl7Segment }
