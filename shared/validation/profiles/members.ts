/** Slicing by discriminators. https://hl7.org/fhir/R4/profiling.html#slicing */
import { isObject } from '../../fhir/resource.ts'
import {
  at,
  type Check,
  conforms,
  type Item,
  type ItemCheck,
  parseMax,
  type Run,
  rangeText,
  type Test,
} from '../profile-run.ts'
import { findCodes, isBound, type Property } from '../shapes.ts'
import { compilePattern } from './patterns.ts'
import {
  type Discriminator,
  type ElementNode,
  extensionUrl,
  isNamed,
  nodeAt,
  type ProfileElement,
  parseSteps,
  requiredSet,
  type Step,
  type Typed,
  valuesAt,
} from './tree.ts'

interface Membership {
  has(item: Item, run: Run): boolean
  /** Value sets needed to decide. */
  readonly valueSets: ReadonlySet<string>
}

type IsMember = Membership['has']

export interface Others {
  check(canonical: string): Check
  typeOf(canonical: string): string | undefined
}

/** Returns undefined when no discriminator identifies the slice. */
function membership(
  discriminators: readonly Discriminator[],
  slice: ElementNode,
  others: Others,
): Membership | undefined {
  const valueSets = new Set<string>()
  const tests = discriminators.flatMap(({ type, path }) => {
    const steps = parseSteps(path)
    const test = steps && memberTest(type, steps, { slice, others, valueSets })
    return test === undefined ? [] : [test]
  })
  if (tests.length === 0) return undefined
  return { valueSets, has: (item, run) => tests.every((test) => test(item, run)) }
}

interface SliceScope {
  readonly slice: ElementNode
  readonly others: Others
  readonly valueSets: Set<string>
}

function memberTest(
  type: string,
  steps: readonly Step[],
  { slice, others, valueSets }: SliceScope,
): IsMember | undefined {
  if (type === 'type') return typeTest(steps, slice, others)
  if (type === 'profile') return profileTest(steps, slice, others)
  const test =
    type === 'exists'
      ? existenceTest(steps, slice)
      : type === 'value' || type === 'pattern'
        ? valueTest(steps, slice, valueSets)
        : undefined
  return test && (({ value }, run) => test(value, run))
}

/** Returns the values of a discriminator; the item itself has the type of its property. */
function typedAt({ value, property }: Item, steps: readonly Step[], run: Run): readonly Typed[] {
  if (steps.length > 0) return valuesAt(value, steps, run)
  const isResource = isObject(value) && typeof value.resourceType === 'string'
  return [{ value, type: isResource ? String(value.resourceType) : property.type }]
}

function typeTest(
  steps: readonly Step[],
  slice: ElementNode,
  others: Others,
): IsMember | undefined {
  const types = nodeAt(slice, steps)?.element?.type ?? []
  const codes =
    steps.at(-1)?.kind === 'resolve'
      ? types.flatMap(({ targetProfile = [] }) =>
          targetProfile.flatMap((url) => others.typeOf(url) ?? []),
        )
      : types.map(({ code }) => code)
  if (codes.length === 0) return undefined
  return (item, run) =>
    typedAt(item, steps, run).some(({ type }) => codes.some((code) => isNamed(type, code)))
}

/** Only contained targets are available; other references are matched by type. */
function profileTest(
  steps: readonly Step[],
  slice: ElementNode,
  others: Others,
): IsMember | undefined {
  const types = nodeAt(slice, steps)?.element?.type ?? []
  const isResolved = steps.at(-1)?.kind === 'resolve'
  const urls = types.flatMap(({ profile = [], targetProfile = [] }) =>
    isResolved ? targetProfile : profile,
  )
  const known = urls.flatMap((url) => {
    const type = others.typeOf(url)
    return type === undefined ? [] : [{ type, check: others.check(url) }]
  })
  if (known.length === 0) return undefined
  return (item, run) =>
    typedAt(item, steps, run).some(({ value, type }) =>
      known.some((profile) => {
        if (!isNamed(type, profile.type)) return false
        return isStub(value) || conforms(profile.check, value, run)
      }),
    )
}

function isStub(value: unknown): boolean {
  return isObject(value) && Object.keys(value).length === 1 && 'resourceType' in value
}

function existenceTest(steps: readonly Step[], slice: ElementNode): Test | undefined {
  const element = steps.length === 0 ? undefined : nodeAt(slice, steps)?.element
  const { min = 0, max } = element ?? {}
  if (max === '0') return (value, run) => valuesAt(value, steps, run).length === 0
  return min > 0 ? (value, run) => valuesAt(value, steps, run).length > 0 : undefined
}

/** Tests values that the slice fixes at, above or below the end of the path. */
function valueTest(
  steps: readonly Step[],
  node: ElementNode,
  valueSets: Set<string>,
): Test | undefined {
  const pattern = compilePattern(node.element)
  if (pattern !== undefined) return pattern
  const [first, ...rest] = steps
  if (first === undefined) {
    return bindingTest(node.element, valueSets) ?? childrenTest(node, valueSets)
  }
  const next = nodeAt(node, [first])
  const inner = next && fixedTest(rest, next, valueSets)
  if (inner !== undefined) return someTest(first, inner)
  const url = first.kind === 'child' && first.name === 'url' ? extensionUrl(node) : undefined
  return url === undefined ? undefined : (value) => isObject(value) && value.url === url
}

/** Slices of the element may also fix the value. */
function fixedTest(
  steps: readonly Step[],
  node: ElementNode,
  valueSets: Set<string>,
): Test | undefined {
  const own = valueTest(steps, node, valueSets)
  if (own !== undefined) return own
  const tests = [...node.slices.values()].flatMap(
    (slice) => valueTest(steps, slice, valueSets) ?? [],
  )
  return tests.length === 0 ? undefined : (value, run) => tests.some((test) => test(value, run))
}

function someTest(step: Step, inner: Test): Test {
  return (value, run) => valuesAt(value, [step], run).some((found) => inner(found.value, run))
}

function bindingTest(
  element: ProfileElement | undefined,
  valueSets: Set<string>,
): Test | undefined {
  const valueSet = requiredSet(element)
  if (valueSet === undefined) return undefined
  valueSets.add(valueSet)
  return (value, { codes }) => {
    const list = findCodes(valueSet, codes)
    return list !== undefined && isBound(value, list)
  }
}

function childrenTest(node: ElementNode, valueSets: Set<string>): Test | undefined {
  const tests = [...node.children].flatMap(([name, child]) => {
    const test = fixedTest([], child, valueSets)
    return test === undefined ? [] : [someTest({ kind: 'child', name, type: undefined }, test)]
  })
  return tests.length === 0 ? undefined : (value, run) => tests.every((test) => test(value, run))
}

type SlicesCheck = (items: readonly Item[], label: string, run: Run) => void

interface Slice {
  readonly name: string
  readonly members: Membership
  readonly checks: ReadonlyMap<Property, ItemCheck>
  readonly min: number
  readonly max: number
  readonly inner: SlicesCheck
}

type Compile = (slice: ElementNode, property: Property) => ItemCheck

/** Compiles a function that counts and checks the values of each slice; `label` is the element's name. */
export function compileSlices(
  node: ElementNode,
  properties: readonly Property[],
  others: Others,
  compileItem: Compile,
): SlicesCheck {
  if (node.slices.size === 0) return () => {}
  const { slicing } = node.element ?? {}
  const { discriminator = defaultsFor(node), rules, ordered } = slicing ?? {}
  const slices = [...node.slices].flatMap(([name, slice]): Slice[] => {
    const members = membership(discriminator, slice, others)
    if (members === undefined) return []
    const checks = new Map(properties.map((item) => [item, compileItem(slice, item)]))
    const { min = 0, max } = slice.element ?? {}
    const inner = compileSlices(slice, properties, others, compileItem)
    return [{ name, members, checks, min, max: parseMax(max) ?? Number.POSITIVE_INFINITY, inner }]
  })
  return (items, label, run) => {
    const known = slices.filter((slice) => isKnown(slice, run))
    const areAll = known.length === node.slices.size
    const isClosed = rules === 'closed' && areAll
    const isOpenAtEnd = rules === 'openAtEnd' && areAll
    let rest = items
    const places = new Map<Item, number>()
    for (const [place, slice] of known.entries()) {
      const members = rest.filter((item) => slice.members.has(item, run))
      for (const item of members) places.set(item, place)
      if (members.length > 0) rest = rest.filter((item) => !places.has(item))
      run.spend(items.length)
      checkSlice(slice, members, label, run)
    }
    for (const item of isClosed ? rest : []) {
      at(item, run, () => run.faults.rule('Value is in none of the slices that are allowed'))
    }
    if (ordered && !isInOrder(items, places)) run.faults.rule('Slices are not in order', label)
    if (isOpenAtEnd && hasRestBefore(items, places)) {
      run.faults.rule('Values outside of the slices must come after them', label)
    }
  }
}

function isKnown({ members }: Slice, { codes }: Run): boolean {
  return members.valueSets.values().every((valueSet) => findCodes(valueSet, codes) !== undefined)
}

function checkSlice(slice: Slice, members: readonly Item[], label: string, run: Run): void {
  const { name, min, max, checks, inner } = slice
  if (members.length < min || members.length > max) {
    const range = `expected ${rangeText(min, max)}, but found ${members.length}`
    run.faults.rule(`Incorrect number of values provided for slice '${name}': ${range}`, label)
  }
  for (const item of members) at(item, run, () => checks.get(item.property)?.(item, run))
  inner(members, label, run)
}

function isInOrder(items: readonly Item[], places: ReadonlyMap<Item, number>): boolean {
  const found = items.flatMap((item) => places.get(item) ?? [])
  return found.every((place, index) => index === 0 || place >= (found[index - 1] ?? 0))
}

function hasRestBefore(items: readonly Item[], places: ReadonlyMap<Item, number>): boolean {
  const first = items.findIndex((item) => !places.has(item))
  return first !== -1 && items.slice(first).some((item) => places.has(item))
}

/** Default discriminators: extensions by url, choices by type. */
function defaultsFor({ name }: ElementNode): readonly Discriminator[] {
  const isExtension = name === 'extension' || name === 'modifierExtension'
  return [isExtension ? { type: 'value', path: 'url' } : { type: 'type', path: '$this' }]
}
