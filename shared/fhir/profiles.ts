/**
 * StructureDefinitions → functions that check what a profile adds to its type. What the type itself
 * demands is left out: every resource has passed that already.
 * https://hl7.org/fhir/R4/profiling.html
 */
import { HttpError } from '../errors.ts'
import { bindingFault } from './bindings.ts'
import { typeDefinition } from './definitions.ts'
import type { Variables } from './invariant-logic.ts'
import { type Invariant, tenantInvariant } from './invariants.ts'
import { patternOf } from './profile-patterns.ts'
import {
  at,
  type Check,
  type Item,
  type ItemCheck,
  maxOf,
  type Profile,
  type Run,
  rangeText,
  requireTime,
} from './profile-run.ts'
import { compileSlices } from './profile-slices.ts'
import { type ElementNode, type StructureDefinition, treeOf } from './profile-tree.ts'
import { isObject } from './resource.ts'
import { type Property, shapeOf } from './shapes.ts'
import type { Report } from './validation-report.ts'

/** Finds the other profiles that one names; undefined for those nobody has. */
export type FindProfile = (canonical: string) => StructureDefinition | undefined

const CORE = 'http://hl7.org/fhir/StructureDefinition/'

/** Canonical urls that must be at hand to compile a profile. */
export function profilesNamedIn(profile: StructureDefinition): readonly string[] {
  const { snapshot, differential, baseDefinition } = profile
  const elements = snapshot?.element ?? differential?.element ?? []
  const named = elements.flatMap(({ type = [] }) => type.flatMap((item) => item.profile ?? []))
  const base = snapshot === undefined && baseDefinition !== undefined ? [baseDefinition] : []
  return [...new Set([...named, ...base])].filter((url) => url !== `${CORE}${profile.type}`)
}

/** Elements that the type does not know are left out. */
export function compileProfile(definition: StructureDefinition, find: FindProfile): Profile {
  const compiler = new Compiler(find)
  return { url: definition.url, type: definition.type, check: compiler.profile(definition) }
}

class Compiler {
  readonly #find: FindProfile
  readonly #compiled = new Map<string, Check>()

  constructor(find: FindProfile) {
    this.#find = find
  }

  profile(definition: StructureDefinition): Check {
    const { type } = definition
    if (typeDefinition(type) === undefined) return () => {}
    const chain = [definition]
    for (let last = definition; last.snapshot === undefined; ) {
      const base = last.baseDefinition === undefined ? undefined : this.#find(last.baseDefinition)
      if (base === undefined || chain.includes(base)) break
      chain.push(base)
      last = base
    }
    const checks = chain.map((item) => {
      const root = treeOf(item)
      const children = this.#children(root, type)
      const invariants = invariantsOf(root, type, shapeOf(type).invariants)
      return (value: unknown, run: Run) => {
        if (!isObject(value)) return
        children(value, run)
        checkInvariants(invariants, value, run)
      }
    })
    return (value, run) => {
      for (const check of checks) check(value, run)
    }
  }

  /** The profile of a type that an element names, compiled when a value is there to be checked. */
  #named(canonical: string): Check {
    return (value, run) => {
      let check = this.#compiled.get(canonical)
      if (check === undefined) {
        const definition = this.#find(canonical)
        check = definition === undefined ? () => {} : this.profile(definition)
        this.#compiled.set(canonical, check)
      }
      check(value, run)
    }
  }

  #children(node: ElementNode, type: string): (parent: Record<string, unknown>, run: Run) => void {
    const checks = [...node.children.values()].flatMap((child) => this.#element(child, type) ?? [])
    return (parent, run) => {
      for (const check of checks) check(parent, run)
    }
  }

  #element(node: ElementNode, parentType: string) {
    const all = [...shapeOf(parentType).properties.values()].filter(
      (property) =>
        !property.isSibling && (property.name === node.name || property.choice === node.name),
    )
    const [first] = all
    if (first === undefined) return undefined
    const codes = node.element?.type?.map(({ code }) => code)
    const isChoice = first.choice === node.name
    const isAllowed = ({ type }: Property) =>
      !isChoice || codes === undefined || codes.includes(type)
    const checks = new Map(all.map((property) => [property, this.#item(node, property)]))
    const slices = compileSlices(node, all, (slice, property) => this.#item(slice, property))
    const label = isChoice ? `${node.name}[x]` : node.name
    const range = rangeOf(node, first)
    return (parent: Record<string, unknown>, run: Run) => {
      const items = all.flatMap((property) => itemsOf(parent, property))
      checkCount(items.length, range, label, run)
      for (const item of items) {
        const { property } = item
        if (!isAllowed(property)) {
          run.faults.rule(`Invalid additional property "${property.name}"`, property.name)
        } else at(item, run, () => checks.get(property)?.(item, run))
      }
      slices(items, label, run)
    }
  }

  /** What an element or a slice demands of each of its values. */
  #item(node: ElementNode, property: Property): ItemCheck {
    const { element } = node
    const pattern = patternOf(element)
    const isPrimitive = property.check !== undefined
    const shape = property.shape?.()
    const known = [...property.invariants, ...(shape?.invariants ?? [])]
    const invariants = invariantsOf(node, property.type, known)
    const named = element?.type?.find(({ code }) => code === property.type)?.profile ?? []
    const [only, ...others] = named
    const profile = only !== undefined && others.length === 0 ? this.#named(only) : undefined
    const binding = element?.binding?.strength === 'required' ? element.binding.valueSet : undefined
    const children =
      shape === undefined && !isPrimitive
        ? undefined
        : this.#children(node, isPrimitive ? 'Element' : property.type)
    return ({ value, sibling }, run) => {
      if (pattern !== undefined && value !== null && !pattern(value)) {
        run.faults.rule('Value did not match expected pattern')
      }
      if (binding !== undefined) {
        const fault = bindingFault(value, binding)
        if (fault !== undefined) run.terminology.rule(fault, undefined, 'value')
      }
      const object = isPrimitive ? (sibling ?? {}) : value
      if (isObject(object)) children?.(object, run)
      profile?.(value, run)
      if (value !== null) checkInvariants(invariants, value, run)
    }
  }
}

interface Range {
  readonly min: number
  readonly max: number
}

/** Undefined where the profile is as its type. */
function rangeOf({ element }: ElementNode, property: Property): Range | undefined {
  const min = element?.min ?? 0
  const max = maxOf(element?.max) ?? property.max
  return min > property.min || max < property.max ? { min, max } : undefined
}

function checkCount(count: number, range: Range | undefined, label: string, run: Run): void {
  if (range === undefined || (count >= range.min && count <= range.max)) return
  const text =
    count === 0
      ? 'Missing required property'
      : `Invalid number of values: expected ${rangeText(range.min, range.max)}, but found ${count}`
  run.faults.rule(text, label)
}

function itemsOf(parent: Record<string, unknown>, property: Property): readonly Item[] {
  const value = parent[property.name]
  const sibling = property.check === undefined ? undefined : parent[`_${property.name}`]
  if (!property.isArray) {
    if (value === undefined && sibling === undefined) return []
    return [{ value: value ?? null, property, index: undefined, sibling }]
  }
  const values = Array.isArray(value) ? value : []
  const siblings = Array.isArray(sibling) ? sibling : []
  return Array.from({ length: Math.max(values.length, siblings.length) }, (_, index) => ({
    value: values[index] ?? null,
    property,
    index,
    sibling: siblings[index],
  }))
}

/** Those that the type does not have already. */
function invariantsOf(
  { element }: ElementNode,
  type: string,
  known: readonly Invariant[],
): readonly Invariant[] {
  return (element?.constraint ?? [])
    .filter(({ key, severity, expression }) => {
      const isNew = known.every((invariant) => invariant.key !== key)
      return severity === 'error' && expression !== undefined && isNew && !UNIVERSAL_KEYS.has(key)
    })
    .map((constraint) => tenantInvariant(constraint, type))
}

/** Repeated on every element of a snapshot. */
const UNIVERSAL_KEYS = new Set([
  'ele-1',
  'ext-1',
  'dom-3',
  'ref-1',
  'txt-1',
  'txt-2',
  'org-1',
  'sdf-19',
])

function checkInvariants(invariants: readonly Invariant[], value: unknown, run: Run): void {
  if (invariants.length === 0) return
  const { resource, faults } = run
  const variables = { context: value, resource, rootResource: resource }
  for (const invariant of invariants) {
    const { text, expression } = invariant
    const isMet = evaluate(invariant, value, variables, faults)
    if (!isMet) faults.rule(text, undefined, 'invariant', JSON.stringify({ fhirpath: expression }))
  }
  requireTime(run)
}

/** An invariant that is no FHIRPath says nothing about the resource, but its author should know. */
function evaluate(
  { key, holds }: Invariant,
  value: unknown,
  variables: Variables,
  faults: Report,
): boolean {
  try {
    return holds(value, variables)
  } catch (error) {
    if (!(error instanceof HttpError) || error.outcome.issue[0]?.code === 'too-costly') throw error
    faults.add('warning', 'processing', `Constraint ${key}: ${error.message}`)
    return true
  }
}
