/**
 * Writes the response text directly from resources: https://spec.graphql.org/October2021/#sec-Execution
 * Fields that need a statement, and lists that exceed a turn, leave placeholders.
 */
import { GraphQLError, type GraphQLResolveInfo } from 'graphql'
import { tooLarge } from '../../core/errors.ts'
import { isObject, isResource, type Resource, referenceTo } from '../../fhir/resource.ts'
import type { SearchPage, Version } from '../../store/rows/version.ts'
import type { Given, Source } from '../schema/elements.ts'
import { type DeferredText, leafText } from './deferred-text.ts'
import { sliceExpression } from './directives.ts'
import {
  connection,
  type Edge,
  evaluateTexts,
  filterItems,
  itemsWhereTrue,
  LIST,
  planForVersion,
  publishedFor,
  requestedParts,
  resolvePageSize,
  unfiltered,
  withoutNulls,
} from './lists.ts'
import type { Plan, Shape, Step } from './plan.ts'
import {
  findReferring,
  isPending,
  isReadWhole,
  parseFound,
  parseShown,
  read,
  rememberFound,
  resolveReference,
  search,
  shownText,
  throwNotFound,
} from './reads.ts'
import { type Path, pathKeys, type Run } from './run.ts'
import { type Parent, writeText } from './write-text.ts'

interface At {
  readonly run: Run
  readonly step: Step
  readonly owner: Resource | undefined
  readonly path: Path
}

export function writeObject(run: Run, out: DeferredText, { steps }: Plan, parent: Parent): void {
  if (steps.length === 0) {
    out.text += '{}'
    return
  }
  const { value } = parent
  for (const step of steps) {
    if (out.isFull) throw run.abortRequest(tooLarge())
    out.text += step.open
    // Most fields are strings of the object itself.
    const found = step.member === undefined ? undefined : readMember(value, step.member)
    if (typeof found === 'string') out.text += JSON.stringify(found)
    else writeField(run, out, step, parent)
  }
  out.text += '}'
}

/** Cached: introspection describes the same argument hundreds of times. */
function writeDescription(run: Run, out: DeferredText, plan: Plan, parent: Parent): void {
  run.once(out, { plan, of: parent.value }, (part) => writeObject(run, part, plan, parent))
}

/** The error is already reported; the parent must become null. */
const REPORTED = new Error('A required field is null')

export function writeField(run: Run, out: DeferredText, step: Step, parent: Parent): void {
  const { text, size } = out
  const { owner, path } = parent
  const at = { run, step, owner, path: { parent: path, key: step.key } }
  try {
    produce(run, out, at, parent.value)
  } catch (error) {
    if (run.isFatal(error)) throw error
    if (error !== REPORTED) run.report(error, step, at.path)
    if (step.isRequired) throw REPORTED
    out.reset(`${text}null`, size)
  }
}

function produce(run: Run, out: DeferredText, at: At, value: unknown): void {
  const { step } = at
  const { source } = step
  switch (source?.kind) {
    case undefined:
      complete(out, step, described(run, step, value), at)
      return
    case 'member':
      complete(out, step, readMember(value, source.name), at)
      return
    case 'list':
      writeList(out, at, source, readMember(value, source.child.name))
      return
    case 'edge':
      writeFound(out, at, step.shape, (value as Edge).version)
      return
    case 'reference': {
      const { given } = run.argumentsFor(step)
      writeTarget(out, at, resolveReference(run, value, at.owner, given), given)
      return
    }
    case 'read': {
      const { given } = run.argumentsFor(step)
      writeTarget(out, at, read(run, source.type, String(given.id)), given)
      return
    }
    case 'search':
    case 'referring':
      writeSearch(out, at, source, value)
      return
    case 'write':
      throw new Error('Mutations are carried out one by one')
    default:
      source satisfies never
  }
}

interface Value {
  readonly shape: Shape
  readonly isRequired: boolean
}

function described(run: Run, step: Step, value: unknown): unknown {
  const { field, parent } = step
  if (field === undefined) return parent.name
  // These fields only read the schema.
  const info = { schema: run.config.schema } as GraphQLResolveInfo
  return field.resolve?.(value, run.argumentsFor(step).given, undefined, info)
}

function complete(out: DeferredText, { shape, isRequired }: Value, value: unknown, at: At): void {
  if (value === null || value === undefined) {
    if (isRequired) throw new GraphQLError(`Cannot return null for non-nullable field ${at.step}.`)
    out.text += 'null'
    return
  }
  switch (shape.kind) {
    case 'leaf':
      out.text += leafText(shape.type, value)
      return
    case 'object': {
      const { run, step, owner, path } = at
      if (step.source !== undefined) writeObject(run, out, shape.plan(), { value, owner, path })
      else writeDescription(run, out, shape.plan(), { value, owner: undefined, path })
      return
    }
    case 'any':
      writeObject(at.run, out, planFor(shape, value), { value, owner: at.owner, path: at.path })
      return
    case 'list':
      if (!Array.isArray(value)) throw new GraphQLError('Expected Iterable, but did not find one')
      writeItems(out, shape, value, at)
      return
    default:
      shape satisfies never
  }
}

function planFor(shape: Shape & { readonly kind: 'any' }, value: unknown): Plan {
  const plan = isResource(value) ? shape.planFor(value.resourceType) : undefined
  if (plan === undefined) throw new GraphQLError('A resource is of no type of this schema')
  return plan
}

function writeItems(
  out: DeferredText,
  { of, isRequired }: Shape & { readonly kind: 'list' },
  items: readonly unknown[],
  at: At,
): void {
  // All failures happen before anything is written.
  if (of.kind === 'any') for (const item of items) planFor(of, item)
  const item = { shape: of, isRequired }
  const { run, step, owner, path } = at
  // Leaves need no path.
  const isWhole = of.kind === 'leaf'
  const each = (to: DeferredText, i: number) => {
    const place = isWhole ? at : { run, step, owner, path: { parent: path, key: i } }
    complete(to, item, items[i], place)
  }
  writeEach(run, out, { length: items.length, each, isWhole })
}

interface Items {
  readonly length: number
  each(out: DeferredText, i: number): void
  readonly isWhole: boolean
}

function writeEach(run: Run, out: DeferredText, { length, each, isWhole }: Items): void {
  const writeFrom = (to: DeferredText, from: number): void => {
    for (let i = from; i < length; i++) {
      if (!isWhole && run.turns.isUsedUp) {
        const rest = to.hole()
        run.enqueueWork(rest, () => writeFrom(rest, i))
        return
      }
      if (i > 0) to.text += ','
      run.turns.spend(1)
      each(to, i)
    }
  }
  out.text += '['
  writeFrom(out, 0)
  out.text += ']'
}

/** https://hl7.org/fhir/R4/graphql.html#list */
function writeList(
  out: DeferredText,
  at: At,
  { child }: Source & { readonly kind: 'list' },
  value: unknown,
): void {
  const { run, step, owner } = at
  // Guaranteed by the shape of list fields.
  const shape = step.shape as Shape & { readonly kind: 'list' }
  if (!Array.isArray(value)) {
    out.text += 'null'
    return
  }
  run.spend('values', value.length)
  const { given, text } = run.argumentsFor(step)
  const { items, fhirpath, part } = text === '{}' ? unfiltered(value) : filterItems(value, given)
  if (fhirpath === undefined && !step.isSliced) {
    writeItems(out, shape, withoutNulls(part(items)), at)
    return
  }
  const hole = out.hole()
  run.enqueueWork(hole, async () => {
    try {
      const passed =
        fhirpath === undefined
          ? items
          : await itemsWhereTrue(run, owner, { items, child, expression: fhirpath })
      const list = withoutNulls(part(passed))
      const slice = step.isSliced ? sliceExpression(step.nodes, run.config.variables) : undefined
      if (slice !== undefined) {
        const key = `/${pathKeys(at.path).join('/')}`
        run.slices.set(
          key,
          await evaluateTexts(run, owner, { items: list, child, expression: slice }),
        )
      }
      writeItems(hole, shape, list, at)
    } catch (error) {
      run.fail(error, { out: hole, step, path: at.path })
    }
  })
}

function writeTarget(
  out: DeferredText,
  at: At,
  target: ReturnType<typeof resolveReference>,
  { optional }: Given,
): void {
  const { run, step, path } = at
  if (target === null || isResource(target)) {
    writeResource(run, out, at, target)
    return
  }
  if (!isPending(target)) {
    writeVersion(out, at, target)
    return
  }
  run.enqueueRead(target, { out: out.hole(), step, path }, (hole, version) => {
    if (version !== undefined) writeVersion(hole, at, version)
    else writeResource(run, hole, at, optional === true ? null : throwNotFound())
  })
}

/** Caches the text, since many references share a resource. */
function writeVersion(out: DeferredText, at: At, version: Version): void {
  const { run, step } = at
  const write = (to: DeferredText) => writeStored(to, at, step.shape, version)
  const plan = planForVersion(step.shape, version)
  if (plan === undefined || run.config.asksWhole) write(out)
  else run.once(out, { plan, of: version }, write)
}

function writeFound(out: DeferredText, at: At, shape: Shape, version: Version): void {
  rememberFound(at.run, version)
  writeStored(out, at, shape, version)
}

const BY_VALUE = { object: writeObject, field: writeField }

function writeStored(out: DeferredText, at: At, shape: Shape, version: Version): void {
  const { run, path } = at
  const text = shownText(run, version)
  const plan = planForVersion(shape, version)
  if (plan !== undefined && text.length <= MAX_TEXT && !isReadWhole(run, text)) {
    const owner = { resourceType: version.type, id: version.id }
    if (writeText({ run, text, owner, byValue: BY_VALUE }, out, plan, path)) return
  }
  const resource = parseShown(run, text)
  complete(out, { shape, isRequired: true }, resource, { ...at, owner: resource })
}

/** Longer resources are written as values, which yields between slices. */
const MAX_TEXT = 100_000

export function writeResource(
  run: Run,
  out: DeferredText,
  at: Omit<At, 'run'>,
  resource: Resource | null,
): void {
  const contained = at.owner?.contained
  const isContained = Array.isArray(contained) && contained.includes(resource)
  const owner = isContained ? at.owner : (resource ?? undefined)
  complete(out, at.step, resource, { ...at, run, owner })
}

function writeSearch(
  out: DeferredText,
  at: At,
  { kind, type, isConnection }: Source & { readonly kind: 'search' | 'referring' },
  value: unknown,
): void {
  const { run, step, path } = at
  const args = run.argumentsFor(step)
  const wanted = { type, args, ...(isConnection ? requestedParts(step.shape) : LIST) }
  const isPart = kind === 'referring' && (!isResource(value) || at.owner !== value)
  // A contained resource has no URL.
  if (isPart) {
    out.text += 'null'
    return
  }
  const write = (hole: DeferredText, page: SearchPage) => {
    if (isConnection) {
      const shown = { shape: step.shape, isRequired: false }
      complete(hole, shown, connection(page, args.given), at)
      return
    }
    writePage(hole, at, page.versions, kind === 'search' ? publishedFor(type, args.given) : [])
  }
  const place = { out: out.hole(), step, path }
  if (kind === 'search') run.enqueueRead(search(run, wanted), place, write)
  else run.enqueueRead(findReferring(run, wanted, referenceTo(value as Resource)), place, write)
}

/** `published`: shared definitions, appended to the Project's own. */
function writePage(
  out: DeferredText,
  at: At,
  versions: readonly Version[],
  published: readonly Resource[],
): void {
  const { run, step } = at
  // Guaranteed by the shape of search fields.
  const { of } = step.shape as Shape & { readonly kind: 'list' }
  const own = published.length === 0 ? [] : versions.map((version) => parseFound(run, version))
  const others = published.filter(({ url }) => own.every((resource) => resource.url !== url))
  const all: readonly (Version | Resource)[] =
    published.length === 0 ? versions : [...own, ...others]
  const length = Math.min(all.length, resolvePageSize(run.argumentsFor(step).given))
  const shown = { shape: of, isRequired: true }
  const each = (to: DeferredText, i: number) => {
    const item = all[i]
    const path = { parent: at.path, key: i }
    if (isResource(item)) complete(to, shown, item, { run, step, owner: item, path })
    else if (item !== undefined) writeFound(to, { run, step, owner: undefined, path }, of, item)
  }
  writeEach(run, out, { length, each, isWhole: false })
}

function readMember(source: unknown, name: string): unknown {
  return isObject(source) ? source[name] : undefined
}
