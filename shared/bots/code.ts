/** Module format and checks of bot code. */

import { type AnyNode, type Node, type Position, type Program, parse } from 'acorn'
import { badRequest } from '../core/errors.ts'
import type { BotDeclarations } from '../fhir/bot-declarations.ts'
import { findUndeclared, walk } from './code-uses.ts'
import { moduleExports } from './modules.ts'

export type CodeFormat = 'commonjs' | 'module'

/**
 * At the start of a line, or after a semicolon, where minifying bundlers put it. Blanks do not include line breaks, so that
 * long runs of them are read once: authors control the code.
 */
const HAS_EXPORT =
  /(?:^|[;}])[^\S\r\n\u2028\u2029]*export\s*(?:[{*]|(?:default|const|let|var|async|function|class)\b)/m

/** Returns the format by file name, or by content when the name is ambiguous. */
export function codeFormat(code: string, filename: string): CodeFormat {
  if (/\.c[jt]s$/i.test(filename)) return 'commonjs'
  if (/\.m[jt]s$/i.test(filename)) return 'module'
  return HAS_EXPORT.test(code) && !/\bmodule\.exports\b/.test(code) ? 'module' : 'commonjs'
}

/**
 * Returns warnings: missing modules throw only when reached, and so do secrets and hosts that the Bot does not name.
 * Errors: 400 for a syntax error, a missing export or a missing `handler`.
 */
export function checkCode(
  code: string,
  filename: string,
  declared?: BotDeclarations,
): readonly string[] {
  const format = codeFormat(code, filename)
  const program = parseCode(code, filename, format)
  const uses = declared === undefined ? [] : findUndeclared(program, declared)
  const warnings = [
    ...checkImports(program, filename),
    ...uses.slice(0, MOST_WARNINGS).map(({ node, text }) => placed(filename, node, text)),
  ]
  if (format === 'module' ? !exportsHandler(program) : !assignsHandler(program)) {
    throw badRequest(`${filename}: there is no export named "handler" (line 1, column 1)`)
  }
  return warnings
}

function parseCode(code: string, filename: string, format: CodeFormat): Program {
  try {
    return parse(code, {
      ecmaVersion: 'latest',
      sourceType: format === 'module' ? 'module' : 'script',
      allowReturnOutsideFunction: format === 'commonjs',
      allowAwaitOutsideFunction: format === 'module',
      allowHashBang: true,
      locations: true,
    })
  } catch (error) {
    if (error instanceof RangeError) throw badRequest(`${filename}: the code is nested too deeply`)
    if (!(error instanceof SyntaxError)) throw error
    const { loc } = error as SyntaxError & { loc?: Position }
    const text = error.message.replace(/ \(\d+:\d+\)$/, '')
    const place = loc === undefined ? '' : ` (line ${loc.line}, column ${loc.column + 1})`
    throw badRequest(`${filename}: ${text}${place}`)
  }
}

function exportsHandler(program: Program): boolean {
  return program.body.some((node) => {
    if (node.type === 'ExportDefaultDeclaration') return true
    // Exports of another module are unknown here; the sandbox checks them.
    if (node.type === 'ExportAllDeclaration') return true
    if (node.type !== 'ExportNamedDeclaration') return false
    const { declaration } = node
    if (declaration?.type === 'VariableDeclaration') {
      return declaration.declarations.some(
        ({ id }) => id.type !== 'Identifier' || id.name === 'handler',
      )
    }
    if (declaration?.id.name === 'handler') return true
    return node.specifiers.some(({ exported }) => {
      const name = exported.type === 'Identifier' ? exported.name : exported.value
      return name === 'handler' || name === 'default'
    })
  })
}

/** True also where only execution shows it: `module.exports = made()`, `define(exports, …)`. */
function assignsHandler(program: Program): boolean {
  let isFound = false
  walk(program, (node) => {
    isFound ||=
      (node.type === 'AssignmentExpression' && isModuleExports(node.left)) ||
      (node.type === 'CallExpression' && node.arguments.some(isExports)) ||
      (node.type === 'MemberExpression' &&
        isExports(node.object) &&
        (node.computed || identifierName(node.property) === 'handler'))
  })
  return isFound
}

function isExports(node: AnyNode): boolean {
  return identifierName(node) === 'exports' || isModuleExports(node)
}

function isModuleExports(node: AnyNode): boolean {
  if (node.type !== 'MemberExpression' || identifierName(node.object) !== 'module') return false
  return node.computed || identifierName(node.property) === 'exports'
}

function identifierName(node: AnyNode): string | undefined {
  return node.type === 'Identifier' ? node.name : undefined
}

// Checks a bot's imports against the sandbox at deployment.

const MOST_WARNINGS = 20

/**
 * Returns missing modules and names with their places, as warnings: bundles refer to unused modules, inside `try` or in
 * dead code. Errors: 400 for a missing name in an `import`, which would prevent any run.
 */
function checkImports(program: Program, filename: string): readonly string[] {
  const warnings = new Set<string>()
  walk(program, (node) => {
    for (const { module, names } of readImports(node)) {
      const known = moduleExports(module)
      const missing = known === undefined ? undefined : names.find((name) => !known.has(name))
      if (known === undefined)
        warnings.add(placed(filename, node, `Cannot find module "${module}"`))
      if (missing === undefined) continue
      const text = placed(filename, node, `"${module}" has no "${missing}"`)
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
