/**
 * Writes the fields of a stored resource from its text, without making objects of it: most are strings and numbers that
 * stand in the answer as they stand there. A field that is not so plain is read, and written as a value.
 */
import { GraphQLBoolean, GraphQLID, type GraphQLLeafType, GraphQLString } from 'graphql'
import { tooLarge } from '../../core/errors.ts'
import { itemOffsets, memberOffsets } from '../../fhir/json-text.ts'
import type { Resource } from '../../fhir/resource.ts'
import { Float } from '../schema/elements.ts'
import type { DeferredText } from './deferred-text.ts'
import type { Plan, Step } from './plan.ts'
import { readText } from './reads.ts'
import type { Path, Run } from './run.ts'

/** A stored resource. */
export interface Stored {
  readonly run: Run
  readonly text: string
  readonly owner: Resource
  readonly byValue: ByValue
}

/** How objects and fields are written that are values. */
interface ByValue {
  object(run: Run, out: DeferredText, plan: Plan, parent: Parent): void
  field(run: Run, out: DeferredText, step: Step, parent: Parent): void
}

interface Parent {
  readonly value: unknown
  readonly owner: Resource | undefined
  readonly path: Path | undefined
}

/** A part of the text. */
interface Part {
  readonly from: number
  readonly to: number
  readonly path: Path | undefined
}

/** False, and nothing is written, where its text is not as that of stored resources is. */
export function writeText(
  of: Stored,
  out: DeferredText,
  plan: Plan,
  path: Path | undefined,
): boolean {
  return writeMembers(of, out, plan, { from: 0, to: of.text.length, path })
}

function writeMembers(of: Stored, out: DeferredText, plan: Plan, { from, path }: Part): boolean {
  const { run, text, owner, byValue } = of
  const members = plan.members()
  const places = memberOffsets(text, from, members)
  if (places === undefined || plan.steps.length === 0) return false
  if (out.isFull) throw run.abortRequest(tooLarge())
  for (const step of plan.steps) {
    out.text += step.open
    const number = step.name === undefined ? undefined : members.get(step.name)
    const begin = number === undefined ? 0 : (places[2 * number] ?? 0)
    const end = number === undefined ? 0 : (places[2 * number + 1] ?? 0)
    if (begin > 0) writeMember(of, out, step, { from: begin, to: end, path })
    else {
      // Lists of what refers to a resource are made of the resource itself.
      const value = number === undefined && from === 0 ? owner : NOTHING
      byValue.field(run, out, step, { value, owner, path })
    }
  }
  out.text += '}'
  return true
}

const NOTHING = {}

const QUOTE = 0x22
const MINUS = 0x2d
const ZERO = 0x30
const NINE = 0x39
const OPEN_LIST = 0x5b
const FALSE = 0x66
const TRUE = 0x74
const OPEN = 0x7b

/** `part` is the value of the member, and its path that of the object. */
function writeMember(of: Stored, out: DeferredText, step: Step, part: Part): void {
  const { run, text, owner, byValue } = of
  const { from, to, path } = part
  const { shape, name = '' } = step
  const first = text.charCodeAt(from)
  if (shape.kind === 'leaf' && isPlain(shape.type, first)) {
    out.text += text.slice(from, to)
    return
  }
  if (shape.kind === 'object' && first === OPEN) {
    writeObject(of, out, shape.plan(), { from, to, path: { parent: path, key: step.key } })
    return
  }
  if (writeList(of, out, step, part)) return
  const value = { [name]: readText(run, text.slice(from, to)) }
  byValue.field(run, out, step, { value, owner, path })
}

function writeObject(of: Stored, out: DeferredText, plan: Plan, part: Part): void {
  if (writeMembers(of, out, plan, part)) return
  const { run, text, owner, byValue } = of
  const value = readText(run, text.slice(part.from, part.to))
  byValue.object(run, out, plan, { value, owner, path: part.path })
}

/** False, and nothing is written, for what is no list, has arguments, or items that are not plain. */
function writeList(of: Stored, out: DeferredText, step: Step, part: Part): boolean {
  const { run, text } = of
  const places = plainItems(of, step, part)
  if (places === undefined || step.shape.kind !== 'list') return false
  const item = step.shape.of
  const length = places.length / 2
  // One too many is an error of the field, which is reported where it is written as a value.
  if (run.used.values + length > run.limitFor('values')) return false
  run.spend('values', length)
  run.turns.spend(length)
  const path = { parent: part.path, key: step.key }
  out.text += '['
  for (let i = 0; i < length; i++) {
    if (i > 0) out.text += ','
    const from = places[2 * i] ?? 0
    const to = places[2 * i + 1] ?? 0
    if (item.kind !== 'object') out.text += text.slice(from, to)
    else writeObject(of, out, item.plan(), { from, to, path: { parent: path, key: i } })
  }
  out.text += ']'
  return true
}

/** Where its items stand, if all of them are plain. */
function plainItems({ run, text }: Stored, step: Step, { from }: Part): number[] | undefined {
  const { source, shape, isSliced } = step
  if (source?.kind !== 'list' || shape.kind !== 'list' || isSliced) return undefined
  if (text.charCodeAt(from) !== OPEN_LIST || run.argumentsFor(step).text !== '{}') return undefined
  const places = itemOffsets(text, from) ?? []
  for (let i = 0; i < places.length; i += 2) {
    const first = text.charCodeAt(places[i] ?? 0)
    const isFine = shape.of.kind === 'leaf' ? isPlain(shape.of.type, first) : first === OPEN
    if (!isFine || shape.of.kind === 'any') return undefined
  }
  // An empty list is not stored.
  return places.length === 0 ? undefined : places
}

/** True for values whose JSON is the text of the answer, by their first character. */
function isPlain(type: GraphQLLeafType, first: number): boolean {
  if (first === QUOTE) return type === GraphQLString || type === GraphQLID
  if (first === MINUS || (first >= ZERO && first <= NINE)) return type === Float
  return type === GraphQLBoolean && (first === TRUE || first === FALSE)
}
