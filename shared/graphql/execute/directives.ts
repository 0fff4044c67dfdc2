/** FHIR's directives, applied to the complete result. https://hl7.org/fhir/R4/graphql.html#flatten */
import {
  type DirectiveNode,
  type FieldNode,
  type FragmentDefinitionNode,
  GraphQLError,
  type OperationDefinitionNode,
  type SelectionNode,
} from 'graphql'
import { isObject } from '../../fhir/resource.ts'
import type { VariableValues } from './plan.ts'
import type { Run } from './run.ts'

const NAMES: ReadonlySet<string> = new Set(['first', 'flatten', 'singleton', 'slice'])

export function sliceExpression(
  nodes: readonly FieldNode[],
  variables: VariableValues,
): string | undefined {
  const slice = nodes
    .flatMap(({ directives = [] }) => directives)
    .find(({ name }) => name.value === 'slice')
  const value = slice?.arguments?.[0]?.value
  if (value?.kind === 'StringValue') return value.value
  if (value?.kind !== 'Variable') return undefined
  const given = variables.coerced[value.name.value]
  return typeof given === 'string' ? given : undefined
}

interface Shaping {
  readonly fragments: ReadonlyMap<string, FragmentDefinitionNode>
  readonly run: Run
}

/** Applies the directives in turns of the event loop. */
export async function withDirectives(
  data: unknown,
  { fragments }: { readonly fragments: Shaping['fragments'] },
  operation: OperationDefinitionNode,
  run: Run,
): Promise<unknown> {
  const work = shaped({ fragments, run }, data, [operation], '')
  for (;;) {
    const { done, value } = work.next()
    if (done) return value
    const turn = run.turns.spendAndYield(OBJECT_WORK)
    if (turn !== undefined) await turn
  }
}

const OBJECT_WORK = 5

export function usesDirectives(node: unknown): boolean {
  if (Array.isArray(node)) return node.some(usesDirectives)
  if (!isObject(node)) return false
  const { definitions, directives, selectionSet, selections } = node
  const isOwn = Array.isArray(directives) && directives.some((one) => NAMES.has(one.name.value))
  return isOwn || usesDirectives(definitions) || usesDirectives(selectionSet ?? selections)
}

type Selecting = Pick<FieldNode, 'selectionSet'>

/** Yields after each object. */
function* shaped(
  shaping: Shaping,
  value: unknown,
  nodes: readonly Selecting[],
  path: string,
): Generator<void, unknown> {
  if (Array.isArray(value)) {
    const items: unknown[] = []
    for (const [i, item] of value.entries()) {
      items.push(yield* shaped(shaping, item, nodes, `${path}/${i}`))
    }
    return items
  }
  if (!isObject(value)) return value
  yield
  const fields = new Map<string, FieldNode[]>()
  for (const node of nodes) gather(shaping, node.selectionSet?.selections ?? [], fields)
  const made = new Map<string, unknown>()
  for (const [key, child] of Object.entries(value)) {
    yield* place(shaping, made, {
      key,
      value: child,
      nodes: fields.get(key) ?? [],
      path: `${path}/${key}`,
    })
  }
  return Object.fromEntries(made)
}

function gather(
  shaping: Shaping,
  selections: readonly SelectionNode[],
  fields: Map<string, FieldNode[]>,
): void {
  for (const selection of selections) {
    if (selection.kind === 'Field') {
      const key = (selection.alias ?? selection.name).value
      fields.set(key, [...(fields.get(key) ?? []), selection])
      continue
    }
    const { selectionSet } =
      selection.kind === 'InlineFragment'
        ? selection
        : (shaping.fragments.get(selection.name.value) ?? {})
    gather(shaping, selectionSet?.selections ?? [], fields)
  }
}

interface Placed {
  readonly key: string
  readonly value: unknown
  readonly nodes: readonly FieldNode[]
  readonly path: string
}

function* place(
  shaping: Shaping,
  target: Map<string, unknown>,
  { key, value, nodes, path }: Placed,
): Generator<void, void> {
  const used = new Set(nodes.flatMap(({ directives = [] }) => directives.map(directiveName)))
  const isList = Array.isArray(value)
  const all: readonly unknown[] = isList ? value : value === null ? [] : [value]
  const items: { readonly item: unknown; readonly suffix: string }[] = []
  for (const [i, item] of (used.has('first') ? all.slice(0, 1) : all).entries()) {
    items.push({
      item: yield* shaped(shaping, item, nodes, isList ? `${path}/${i}` : path),
      suffix: used.has('slice') ? `.${shaping.run.slices.get(path)?.[i] ?? i}` : '',
    })
  }
  if (!used.has('flatten') && !used.has('slice')) {
    const list = items.map(({ item }) => item)
    target.set(key, value === null ? null : isList ? list : list[0])
    if (used.has('singleton')) single(shaping, target, key, nodes)
    return
  }
  const collected = new Map<string, unknown[]>()
  const singles = used.has('flatten') ? singlesIn(shaping, nodes) : new Set<string>()
  for (const { item, suffix } of items) {
    const entries =
      used.has('flatten') && isObject(item) ? Object.entries(item) : [[key, item] as const]
    for (const [name, part] of entries) {
      if (part === null) continue
      const list = collected.get(name + suffix) ?? []
      list.push(...(Array.isArray(part) ? part : [part]))
      collected.set(name + suffix, list)
      if (singles.has(name)) singles.add(name + suffix)
    }
  }
  for (const [name, list] of collected) {
    const isSingle = singles.has(name) || (!isList && !isListIn(items[0]?.item, name))
    target.set(name, isSingle && list.length === 1 ? list[0] : list)
    if (singles.has(name)) single(shaping, target, name, nodes)
  }
}

function isListIn(item: unknown, name: string): boolean {
  return isObject(item) && Array.isArray(item[name])
}

/** Reports more than one value of a `@singleton` as an error. */
function single(
  { run }: Shaping,
  target: Map<string, unknown>,
  key: string,
  nodes: readonly FieldNode[],
): void {
  const value = target.get(key)
  if (!Array.isArray(value)) return
  if (value.length <= 1) {
    target.set(key, value[0] ?? null)
    return
  }
  target.set(key, null)
  const text = `${key} is marked as a singleton and has several values`
  run.report(new GraphQLError(text), { nodes }, undefined)
}

function singlesIn(shaping: Shaping, nodes: readonly FieldNode[]): Set<string> {
  const fields = new Map<string, FieldNode[]>()
  for (const { selectionSet } of nodes) gather(shaping, selectionSet?.selections ?? [], fields)
  const isSingle = (field: FieldNode) => field.directives?.map(directiveName).includes('singleton')
  return new Set([...fields].filter(([, list]) => list.some(isSingle)).map(([key]) => key))
}

function directiveName({ name }: DirectiveNode): string {
  return name.value
}
