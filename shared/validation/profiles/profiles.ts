/** Compiles the additions of a profile to its type. https://hl7.org/fhir/R4/profiling.html */

import { isResourceType, typeDefinition } from '../../fhir/definitions.ts'
import { isObject, isResource, STANDARD_URL } from '../../fhir/resource.ts'
import { at, type Check, conforms, type ItemCheck, type Profile, type Run } from '../profile-run.ts'
import {
  bindingFault,
  checkTarget,
  findCodes,
  getShape,
  type Property,
  publishedCodes,
} from '../shapes.ts'
import { compileSlices, type Others } from './members.ts'
import {
  checkCount,
  checkInvariants,
  compileLimits,
  compilePattern,
  profileCardinality,
  profileInvariants,
  propertyItems,
} from './patterns.ts'
import {
  buildElementTree,
  type ElementNode,
  profileElements,
  requiredSet,
  type StructureDefinition,
} from './tree.ts'

type Found = ReadonlyMap<string, StructureDefinition>

export function profilesNamedIn(profile: StructureDefinition): readonly string[] {
  const { snapshot, baseDefinition } = profile
  const elements = profileElements(profile)
  const isResolving = elements.some(({ slicing }) =>
    slicing?.discriminator?.some(({ path }) => path.includes('resolve()')),
  )
  const named = elements.flatMap(({ type = [] }) =>
    type.flatMap(({ profile: own = [], targetProfile = [] }) =>
      isResolving ? [...own, ...targetProfile] : own,
    ),
  )
  const base = snapshot === undefined && baseDefinition !== undefined ? [baseDefinition] : []
  return [...new Set([...named, ...base])].filter((url) => !isTypeUrl(url))
}

/** True for the canonical of a type, which adds nothing. */
function isTypeUrl(url: string): boolean {
  return (
    url.startsWith(STANDARD_URL) && typeDefinition(url.slice(STANDARD_URL.length)) !== undefined
  )
}

/** Ignores elements unknown to the type. */
export function compileProfile(definition: StructureDefinition, found: Found): Profile {
  const { url, type } = definition
  const all = new Set([definition, ...found.values()])
  const valueSets = new Set(
    [...all].flatMap(profileElements).flatMap((item) => requiredSet(item) ?? []),
  )
  return {
    url,
    type,
    valueSets: [...valueSets].filter((canonical) => publishedCodes(canonical) === undefined),
    check: new Compiler(found).profile(definition),
  }
}

type ParentCheck = (parent: Record<string, unknown>, run: Run) => void

class Compiler implements Others {
  readonly #found: Found
  readonly #compiled = new Map<string, Check>()

  constructor(found: Found) {
    this.#found = found
  }

  profile(definition: StructureDefinition): Check {
    const { type } = definition
    if (typeDefinition(type) === undefined) return () => {}
    const derived = [definition]
    for (let last = definition; last.snapshot === undefined; ) {
      const base =
        last.baseDefinition === undefined ? undefined : this.#found.get(last.baseDefinition)
      if (base === undefined || derived.includes(base)) break
      derived.push(base)
      last = base
    }
    const root = buildElementTree(derived)
    const children = this.#children(root, type)
    const invariants = profileInvariants(root, type, getShape(type).invariants)
    return (value, run) => {
      if (!isObject(value)) return
      children(value, run)
      checkInvariants(invariants, value, run)
    }
  }

  typeOf(canonical: string): string | undefined {
    if (isTypeUrl(canonical)) return canonical.slice(STANDARD_URL.length)
    return this.#found.get(canonical)?.type
  }

  /** Compiles the profile on first use. */
  check(canonical: string): Check {
    return (value, run) => {
      let check = this.#compiled.get(canonical)
      if (check === undefined) {
        const definition = this.#found.get(canonical)
        check = definition === undefined ? () => {} : this.profile(definition)
        this.#compiled.set(canonical, check)
      }
      check(value, run)
    }
  }

  #children(node: ElementNode, type: string): ParentCheck {
    const checks = [...node.children.values()].flatMap((child) => this.#element(child, type) ?? [])
    return (parent, run) => {
      for (const check of checks) check(parent, run)
    }
  }

  #element(node: ElementNode, parentType: string): ParentCheck | undefined {
    const all = [...getShape(parentType).properties.values()].filter(
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
    const compileItem = (slice: ElementNode, property: Property) => this.#item(slice, property)
    const slices = compileSlices(node, all, this, compileItem)
    const label = isChoice ? `${node.name}[x]` : node.name
    const range = profileCardinality(node, first)
    return (parent, run) => {
      const items = all.flatMap((property) => propertyItems(parent, property))
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

  /** Compiled at the first value: nested choices would otherwise multiply. */
  #item(node: ElementNode, property: Property): ItemCheck {
    let check: ItemCheck | undefined
    return (item, run) => {
      run.spend()
      check ??= this.#itemNow(node, property)
      check(item, run)
    }
  }

  #itemNow(node: ElementNode, property: Property): ItemCheck {
    const { element } = node
    const pattern = compilePattern(element)
    const limits = compileLimits(element)
    const shape = property.shape?.()
    const known = [...property.invariants, ...(shape?.invariants ?? [])]
    const invariants = profileInvariants(node, property.type, known)
    const valueSet = requiredSet(element)
    const targets = property.isReference ? this.#targets(node, property) : undefined
    const inner = isAnyResource(property) ? this.#resource(node) : this.#typed(node, property)
    return ({ value, sibling }, run) => {
      if (pattern !== undefined && value !== null && !pattern(value, run)) {
        run.faults.rule('Value did not match expected pattern')
      }
      const fault = limits?.(value)
      if (fault !== undefined) run.faults.rule(fault)
      if (valueSet !== undefined) checkBinding(value, valueSet, run)
      if (targets !== undefined && isObject(value)) checkTarget(value, targets, run.terminology)
      inner(value, sibling, run)
      if (value !== null) checkInvariants(invariants, value, run)
    }
  }

  #typed(node: ElementNode, property: Property) {
    const isPrimitive = property.check !== undefined
    const children = this.#children(node, isPrimitive ? 'Element' : property.type)
    const profile = this.#profileFor(node, property.type)
    return (value: unknown, sibling: unknown, run: Run) => {
      const object = isPrimitive ? (sibling ?? {}) : value
      if (isObject(object)) children(object, run)
      profile?.(value, run)
    }
  }

  /** The check of a contained resource or Bundle entry depends on its type. */
  #resource(node: ElementNode) {
    const codes = node.element?.type?.map(({ code }) => code) ?? []
    const isAny = codes.length === 0 || codes.includes('Resource')
    const byType = new Map<string, Check>()
    return (value: unknown, _sibling: unknown, run: Run) => {
      const type = isObject(value) ? value.resourceType : undefined
      if (!isResource(value) || typeof type !== 'string' || !isResourceType(type)) return
      if (!isAny && !codes.includes(type)) {
        const expected = codes.join(' or ')
        run.faults.rule(`Incorrect resource type: expected ${expected}, but found ${type}`)
        return
      }
      let check = byType.get(type)
      if (check === undefined) {
        const children = this.#children(node, type)
        const profile = this.#profileFor(node, type)
        check = (resource, current) => {
          if (isObject(resource)) children(resource, current)
          profile?.(resource, current)
        }
        byType.set(type, check)
      }
      // The root of a contained resource is its container.
      const root = node.name === 'contained' ? run.root : value
      check(value, { ...run, resource: value, root })
    }
  }

  /** A value must conform to one of the element's profiles for its type. */
  #profileFor({ element }: ElementNode, type: string): Check | undefined {
    const named = element?.type?.find(({ code }) => code === type)?.profile ?? []
    const checks = named.map((canonical) => this.check(canonical))
    if (checks.length < 2) return checks[0]
    return (value, run) => {
      if (checks.some((check) => conforms(check, value, run))) return
      run.faults.rule(`Value fits none of the profiles ${named.join(', ')}`)
    }
  }

  /** Returns undefined when the target type is unrestricted or unknown. */
  #targets({ element }: ElementNode, property: Property): readonly string[] | undefined {
    const named = element?.type?.flatMap(({ targetProfile = [] }) => targetProfile) ?? []
    const types = named.map((canonical) => this.typeOf(canonical) ?? 'Resource')
    if (types.length === 0 || types.includes('Resource')) return undefined
    return [...new Set(types)].filter((type) => property.targets?.includes(type) ?? true)
  }
}

function isAnyResource({ check, shape }: Property): boolean {
  return check === undefined && shape === undefined
}

function checkBinding(value: unknown, valueSet: string, { codes, terminology }: Run): void {
  const list = findCodes(valueSet, codes)
  const fault = list && bindingFault(value, valueSet, list)
  if (fault !== undefined) terminology.rule(fault, undefined, 'value')
}
