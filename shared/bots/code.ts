/** Module format and checks of bot code. */
import { type AnyNode, type Position, type Program, parse } from 'acorn'
import { badRequest } from '../core/errors.ts'
import { checkImports, walk } from './imports.ts'

export type CodeFormat = 'commonjs' | 'module'

/** Returns the format by file name, or by content when the name is ambiguous. */
export function codeFormat(code: string, filename: string): CodeFormat {
  if (/\.c[jt]s$/i.test(filename)) return 'commonjs'
  if (/\.m[jt]s$/i.test(filename)) return 'module'
  // Minifying bundlers put it after a semicolon.
  const hasExport =
    /(?:^|[;}])\s*export\s*(?:[{*]|(?:default|const|let|var|async|function|class)\b)/m.test(code)
  return hasExport && !/\bmodule\.exports\b/.test(code) ? 'module' : 'commonjs'
}

/**
 * Returns warnings: missing modules throw only when reached. Errors: 400 for a syntax error, a missing export or a
 * missing `handler`.
 */
export function checkCode(code: string, filename: string): readonly string[] {
  const format = codeFormat(code, filename)
  const program = parseCode(code, filename, format)
  const warnings = checkImports(program, filename)
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

/** True also where only execution can tell: `module.exports = made()`, `define(exports, …)`. */
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
