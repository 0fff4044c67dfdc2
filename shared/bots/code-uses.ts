/**
 * Finds the secrets and hosts that code names as literals, and the places where it computes them: those are compared
 * with the Bot's when a run uses them.
 */
import type { AnyNode, Node } from 'acorn'
import { isNamedHost } from '../core/config/outbound.ts'
import type { BotDeclarations } from '../fhir/bot-declarations.ts'

interface Use {
  readonly node: Node
  readonly text: string
}

/** Functions that take an address first. */
const CALLERS = new Set(['fetch', 'get', 'request', 'URL'])
const ONLY_RUNS_SHOW = 'only its runs show whether the Bot names'

/** Returns a use of each secret and host that the Bot does not name, and the first that cannot be known. */
export function findUndeclared(program: Node, { secrets, hosts }: BotDeclarations): Use[] {
  const found = new Map<string, Use>()
  const report = (node: Node, text: string) => {
    const earlier = found.get(text)
    if (earlier === undefined || node.start < earlier.node.start) found.set(text, { node, text })
  }
  const add = (node: Node, use: string, extension: string) =>
    report(node, `The code uses ${use}, which the Bot does not name by bot-${extension}`)
  const constants = constantTexts(program)
  walk(program, (node) => {
    for (const name of secretNames(node)) {
      if (secrets?.has(name) === false) add(node, `the secret "${name}"`, 'secret')
    }
    if (secrets !== undefined && computesSecret(node)) {
      report(node, `The code computes names of secrets; ${ONLY_RUNS_SHOW} them`)
    }
    if (hosts === undefined) return
    const url = URL.parse(calledAddress(node, constants) ?? '')
    if (url === null && callsFetch(node)) {
      report(node, `The code fetches a computed address; ${ONLY_RUNS_SHOW} its host`)
    }
    if (url === null || !/^https?:$/.test(url.protocol)) return
    const port = url.port || (url.protocol === 'https:' ? '443' : '80')
    if (!isNamedHost(hosts.rules, url.hostname, port)) add(node, url.host, 'host')
  })
  return [...found.values()].sort((a, b) => a.node.start - b.node.start)
}

/** Reads `event.secrets.NAME`, `secrets['NAME']` and `const { NAME } = event.secrets`. */
function secretNames(node: AnyNode): readonly string[] {
  if (node.type === 'MemberExpression' && isSecrets(node.object)) {
    const name = node.computed ? leadingText(node.property, new Map()) : nameIn(node.property)
    return name === undefined ? [] : [name]
  }
  if (node.type !== 'VariableDeclarator' || node.id.type !== 'ObjectPattern') return []
  if (!node.init || !isSecrets(node.init)) return []
  return node.id.properties.flatMap((property) =>
    property.type === 'Property' && !property.computed ? (nameIn(property.key) ?? []) : [],
  )
}

/** True for `event.secrets[name]`, and where all secrets are passed on or copied. */
function computesSecret(node: AnyNode): boolean {
  switch (node.type) {
    case 'MemberExpression':
      return node.computed && isSecrets(node.object) && secretNames(node).length === 0
    case 'VariableDeclarator':
      return node.init != null && isSecrets(node.init) && !hasOnlyNames(node.id)
    case 'CallExpression':
    case 'NewExpression':
      return node.arguments.some(isSecrets)
    case 'SpreadElement':
      return isSecrets(node.argument)
    case 'ReturnStatement':
      return node.argument != null && isSecrets(node.argument)
    case 'AssignmentExpression':
      return isSecrets(node.right)
    default:
      return false
  }
}

function hasOnlyNames(pattern: AnyNode): boolean {
  if (pattern.type !== 'ObjectPattern') return false
  return pattern.properties.every((property) => property.type === 'Property' && !property.computed)
}

function callsFetch(node: AnyNode): boolean {
  if (node.type !== 'CallExpression' || node.arguments.length === 0) return false
  const { callee } = node
  if (callee.type === 'Identifier') return callee.name === 'fetch'
  const isGlobal = callee.type === 'MemberExpression' && callee.object.type === 'Identifier'
  return isGlobal && nameIn(callee.property) === 'fetch' && nameIn(callee.object) === 'globalThis'
}

function isSecrets(node: AnyNode): boolean {
  if (node.type === 'ChainExpression') return isSecrets(node.expression)
  if (node.type === 'Identifier') return node.name === 'secrets'
  return node.type === 'MemberExpression' && !node.computed && nameIn(node.property) === 'secrets'
}

function calledAddress(node: AnyNode, constants: ReadonlyMap<string, string>): string | undefined {
  if (node.type !== 'CallExpression' && node.type !== 'NewExpression') return undefined
  const { callee } = node
  const name = callee.type === 'MemberExpression' ? nameIn(callee.property) : nameIn(callee)
  const [address] = node.arguments
  if (address === undefined || name === undefined || !CALLERS.has(name)) return undefined
  return leadingText(address, constants)
}

function constantTexts(program: Node): ReadonlyMap<string, string> {
  const found = new Map<string, string>()
  walk(program, (node) => {
    if (node.type !== 'VariableDeclarator' || node.id.type !== 'Identifier' || !node.init) return
    const text = leadingText(node.init, new Map())
    if (text !== undefined) found.set(node.id.name, text)
  })
  return found
}

/** Returns the literal that the text begins with. */
function leadingText(node: AnyNode, constants: ReadonlyMap<string, string>): string | undefined {
  switch (node.type) {
    case 'Literal':
      return typeof node.value === 'string' ? node.value : undefined
    case 'TemplateLiteral': {
      const [head] = node.quasis
      const text = head?.value.cooked ?? ''
      const [first] = node.expressions
      return text === '' && first !== undefined ? leadingText(first, constants) : text
    }
    case 'BinaryExpression':
      return node.operator === '+' ? leadingText(node.left, constants) : undefined
    case 'Identifier':
      return constants.get(node.name)
    default:
      return undefined
  }
}

function nameIn(node: AnyNode): string | undefined {
  if (node.type === 'Identifier') return node.name
  return node.type === 'Literal' ? String(node.value) : undefined
}

/** Visits every node. Iterative, since authors control the nesting depth. */
export function walk(root: Node, visit: (node: AnyNode) => void): void {
  const open: Node[] = [root]
  for (let node = open.pop(); node !== undefined; node = open.pop()) {
    // Every node of acorn's tree is one of AnyNode.
    visit(node as AnyNode)
    for (const value of Object.values(node)) {
      for (const child of Array.isArray(value) ? value : [value]) {
        if (isNode(child)) open.push(child)
      }
    }
  }
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && 'type' in value && 'start' in value
}
