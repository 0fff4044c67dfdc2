/** Copies plain fields from a stored resource's text without parsing it. Other fields are written as values. */
import { GraphQLBoolean, GraphQLID, type GraphQLLeafType, GraphQLString } from 'graphql'
import { tooLarge } from '../../core/errors.ts'
import { itemOffsets, memberOffsets } from '../../fhir/json-text.ts'
import type { Resource } from '../../fhir/resource.ts'
import { Float } from '../schema/elements.ts'
import type { DeferredText } from './deferred-text.ts'
import type { Plan, Step } from './plan.ts'
import { readText } from './reads.ts'
import type { Path, Run } from './run.ts'

interface Stored {
  readonly run: Run
  readonly text: string
  readonly owner: Resource
  readonly byValue: ByValue
}

/** Fallback for objects and fields that need parsing. */
interface ByValue {
  object(run: Run, out: DeferredText, plan: Plan, parent: Parent): void
  field(run: Run, out: DeferredText, step: Step, parent: Parent): void
}

export interface Parent {
  readonly value: unknown
  readonly owner: Resource | undefined
  readonly path: Path | undefined
}

interface Part {
  readonly from: number
  readonly to: number
  readonly path: Path | undefined
}

/** Returns false and writes nothing if the text is not in the stored form. */
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
      // Reverse references need the resource itself.
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

/** `part` is the member's value with the path of the object. */
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

/** Returns false and writes nothing for non-lists, lists with arguments, or lists with complex items. */
function writeList(of: Stored, out: DeferredText, step: Step, part: Part): boolean {
  const { run, text } = of
  const places = plainItems(of, step, part)
  if (places === undefined || step.shape.kind !== 'list') return false
  const item = step.shape.of
  const length = places.length / 2
  // Exceeding the limit is a field error, which the value path reports.
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
  // Empty lists are not stored.
  return places.length === 0 ? undefined : places
}

/** True, by the first character, for values whose JSON equals the response text. */
function isPlain(type: GraphQLLeafType, first: number): boolean {
  if (first === QUOTE) return type === GraphQLString || type === GraphQLID
  if (first === MINUS || (first >= ZERO && first <= NINE)) return type === Float
  return type === GraphQLBoolean && (first === TRUE || first === FALSE)
}
