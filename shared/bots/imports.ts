/** Checks a bot's imports against the sandbox at deployment. */
import type { AnyNode, Node, Program } from 'acorn'
import { badRequest } from '../core/errors.ts'
import { moduleExports } from './modules.ts'

const MOST_WARNINGS = 20

/**
 * Returns missing modules and names with their places, as warnings: bundles refer to unused modules, inside `try` or in
 * dead code. Errors: 400 for a missing name in an `import`, which would prevent any run.
 */
export function checkImports(program: Program, filename: string): readonly string[] {
  const warnings = new Set<string>()
  walk(program, (node) => {
    for (const { module, names } of readImports(node)) {
      const known = moduleExports(module)
      const odd = known === undefined ? undefined : names.find((name) => !known.has(name))
      if (known === undefined)
        warnings.add(placed(filename, node, `Cannot find module "${module}"`))
      if (odd === undefined) continue
      const text = placed(filename, node, `"${module}" has no "${odd}"`)
      if (/^(Im|Ex)port/.test(node.type)) throw badRequest(text)
      warnings.add(text)
    }
  })
  return [...warnings].slice(0, MOST_WARNINGS)
}

function placed(filename: string, node: Node, text: string): string {
  const { line, column } = node.loc?.start ?? { line: 1, column: 0 }
  return `${filename}: ${text} (line ${line}, column ${column + 1})`
}

interface Import {
  readonly module: string
  /** Only certain names; none for a namespace or computed access. */
  readonly names: readonly string[]
}

function readImports(node: AnyNode): readonly Import[] {
  switch (node.type) {
    case 'ImportDeclaration': {
      const names = node.specifiers.flatMap((specifier) =>
        specifier.type === 'ImportSpecifier' ? [importedName(specifier.imported)] : [],
      )
      return [{ module: String(node.source.value), names }]
    }
    case 'ExportNamedDeclaration':
      if (!node.source) return []
      return [
        {
          module: String(node.source.value),
          names: node.specifiers.map(({ local }) => importedName(local)),
        },
      ]
    case 'ExportAllDeclaration':
      return [{ module: String(node.source.value), names: [] }]
    case 'ImportExpression':
      return literal(node.source)
    case 'VariableDeclarator': {
      const required = node.init ? requiredModule(node.init) : undefined
      if (required === undefined || node.id.type !== 'ObjectPattern') return []
      const names = node.id.properties.flatMap((property) =>
        property.type === 'Property' && !property.computed ? [importedName(property.key)] : [],
      )
      return [{ module: required, names }]
    }
    case 'MemberExpression': {
      const required = requiredModule(node.object)
      if (required === undefined || node.computed) return []
      return [{ module: required, names: [importedName(node.property)] }]
    }
    case 'CallExpression': {
      const required = requiredModule(node)
      return required === undefined ? [] : [{ module: required, names: [] }]
    }
    default:
      return []
  }
}

function requiredModule(node: AnyNode): string | undefined {
  if (node.type !== 'CallExpression' || node.callee.type !== 'Identifier') return undefined
  if (node.callee.name !== 'require' || node.arguments.length !== 1) return undefined
  const [argument] = node.arguments
  return argument?.type === 'Literal' && typeof argument.value === 'string'
    ? argument.value
    : undefined
}

function literal(node: AnyNode): readonly Import[] {
  return node.type === 'Literal' && typeof node.value === 'string'
    ? [{ module: node.value, names: [] }]
    : []
}

function importedName(node: AnyNode): string {
  if (node.type === 'Identifier') return node.name
  return node.type === 'Literal' ? String(node.value) : 'default'
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
