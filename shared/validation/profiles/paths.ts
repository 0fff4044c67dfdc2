/**
 * The paths of discriminators, a small part of FHIRPath: children, `extension(url)`, `resolve()`,
 * `ofType(type)`. https://hl7.org/fhir/R4/profiling.html#discriminator
 */
import { isObject, urlOf } from '../../fhir/resource.ts'
import type { Run } from './run.ts'
import type { ElementNode } from './tree.ts'

export type Step =
  | { readonly kind: 'child'; readonly name: string; readonly type: string | undefined }
  | { readonly kind: 'extension'; readonly url: string }
  | { readonly kind: 'resolve' }

const STEP =
  /^(?:extension\('([^']*)'\)|(resolve\(\))|([A-Za-z]\w*)(?:\[x\])?(?:\.ofType\((\w+)\))?)(?:\.|$)/

/** Undefined for a path of another kind. */
export function stepsOf(path: string): readonly Step[] | undefined {
  const steps: Step[] = []
  let rest = path.replace(/^\$this(\.|$)/, '')
  while (rest !== '') {
    const match = STEP.exec(rest)
    if (match === null) return undefined
    const [all, url, resolve, name = '', type] = match
    if (url !== undefined) steps.push({ kind: 'extension', url })
    else if (resolve !== undefined) steps.push({ kind: 'resolve' })
    else steps.push({ kind: 'child', name, type })
    rest = rest.slice(all.length)
  }
  return steps
}

/** Returns what a profile says of the elements at the end of a path. */
export function nodeAt(node: ElementNode, steps: readonly Step[]): ElementNode | undefined {
  const [step, ...rest] = steps
  if (step === undefined) return node
  const next = nextNode(node, step)
  return next && nodeAt(next, rest)
}

function nextNode(node: ElementNode, step: Step): ElementNode | undefined {
  if (step.kind === 'resolve') return node
  if (step.kind === 'child') return node.children.get(step.name)
  const slices = node.children.get('extension')?.slices.values() ?? []
  return [...slices].find((slice) => extensionUrl(slice) === step.url)
}

/** An extension has the url of its definition: https://hl7.org/fhir/R4/extensibility.html */
export function extensionUrl({ element, children }: ElementNode): unknown {
  const [profile] = element?.type?.flatMap((type) => type.profile ?? []) ?? []
  return (profile && urlOf(profile)) ?? children.get('url')?.element?.fixedUri
}

/** A value and the type in the name of its property: `Quantity` of `valueQuantity`. */
export interface Typed {
  readonly value: unknown
  readonly type: string | undefined
}

/** The elements of a value at the end of a path. */
export function valuesAt(value: unknown, steps: readonly Step[], run: Run): readonly Typed[] {
  let found: readonly Typed[] = [{ value, type: undefined }]
  for (const step of steps) {
    run.spend(found.length)
    found = found.flatMap((item) => next(item.value, step, run))
  }
  return found
}

function next(value: unknown, step: Step, { resource }: Run): readonly Typed[] {
  switch (step.kind) {
    case 'child':
      return childrenOf(value, step.name).filter(
        ({ type }) => step.type === undefined || isNamed(type, step.type),
      )
    case 'extension':
      return childrenOf(value, 'extension').filter(
        (item) => isObject(item.value) && item.value.url === step.url,
      )
    case 'resolve': {
      const target = resolved(value, resource)
      return target === undefined ? [] : [{ value: target, type: target.resourceType }]
    }
    default:
      return step satisfies never
  }
}

/** Values of an element; of a choice by its name without the type. */
function childrenOf(value: unknown, name: string): readonly Typed[] {
  if (!isObject(value)) return []
  const isThere = Object.hasOwn(value, name)
  return Object.entries(value).flatMap(([key, content]): Typed[] => {
    const suffix = key.slice(name.length)
    const isChoice = !isThere && key.startsWith(name) && /^[A-Z]/.test(suffix)
    if (key !== name && !isChoice) return []
    const items: readonly unknown[] = Array.isArray(content) ? content : [content]
    const present = items.filter((item) => item !== undefined && item !== null)
    return present.map((item) => ({ value: item, type: typeOf(item) ?? (suffix || undefined) }))
  })
}

function typeOf(value: unknown): string | undefined {
  return isObject(value) && typeof value.resourceType === 'string' ? value.resourceType : undefined
}

/** `string` is `String` in the name of a property. */
export function isNamed(type: string | undefined, code: string): boolean {
  return type === code || type === code.charAt(0).toUpperCase() + code.slice(1)
}

/** Relative or absolute. */
const TYPED = /(?:^|\/)([A-Z][A-Za-z]+)\/[A-Za-z0-9\-.]{1,64}(?:\/_history\/[^/]+)?$/

interface Target {
  readonly resourceType: string
  readonly [name: string]: unknown
}

/** A contained resource, or the type that the reference itself names. */
function resolved(value: unknown, { contained }: Run['resource']): Target | undefined {
  if (!isObject(value) || typeof value.reference !== 'string') return undefined
  const { reference } = value
  if (reference.startsWith('#')) {
    const all: readonly unknown[] = Array.isArray(contained) ? contained : []
    const id = reference.slice(1)
    const found = all.find((item) => isObject(item) && item.id === id)
    // As above, and its type was checked.
    return typeOf(found) === undefined ? undefined : (found as Target)
  }
  const [, type = value.type] = TYPED.exec(reference) ?? []
  return typeof type === 'string' ? { resourceType: type } : undefined
}
