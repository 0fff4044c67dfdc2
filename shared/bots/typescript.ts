/**
 * TypeScript → JavaScript at deploy. Types become blanks, so that the place of an error stays true.
 * What is imported and then used only as a type goes, too: TypeScript's own compiler does the same,
 * and bots write `import { BotEvent, MedplumClient } from '@medplum/core'`.
 */
import { stripTypeScriptTypes } from 'node:module'
import { type AnyNode, type ImportDeclaration, parse } from 'acorn'
import { badRequest } from '../errors.ts'
import { walk } from './imports.ts'

/** Other files are answered as they are. Errors: 400 with line and column. */
export function toJavaScript(code: string, filename: string): string {
  return /\.[cm]?ts$/i.test(filename) ? withoutTypeImports(strip(code, filename)) : code
}

function strip(code: string, filename: string): string {
  try {
    return stripTypeScriptTypes(code, { mode: 'strip' })
  } catch (error) {
    if (!(error instanceof Error)) throw error
    throw badRequest(`${filename}: ${error.message}${placeIn(error.stack ?? '')}`)
  }
}

/** Node shows the place only by a picture: `:line`, some lines up to that one, carets below the place, an empty line. */
function placeIn(stack: string): string {
  const [head = '', ...lines] = stack.split('\n')
  const line = /:(\d+)$/.exec(head)?.[1]
  if (line === undefined) return ''
  const shown = lines.slice(0, lines.findIndex((text) => /^\w*Error\b/.test(text)) - 1)
  const carets = shown.find((text) => /^\s*\^+$/.test(text))
  // There are none below the end of the file.
  const column = carets === undefined ? (shown.at(-1)?.length ?? 0) : carets.indexOf('^')
  return ` (line ${line}, column ${column + 1})`
}

function withoutTypeImports(code: string): string {
  const imports: ImportDeclaration[] = []
  const used = new Set<string>()
  try {
    const program = parse(code, {
      ecmaVersion: 'latest',
      sourceType: 'module',
      allowHashBang: true,
    })
    walk(program, (node) => {
      if (node.type === 'ImportDeclaration') imports.push(node)
      for (const name of usedIn(node)) used.add(name)
    })
  } catch {
    // CommonJS, or broken: the check that follows tells.
    return code
  }
  return imports.reduce((text, declaration) => withoutUnused(text, declaration, used), code)
}

/** Names that a node reads, its children aside; the name of a property is none. */
function usedIn(node: AnyNode): readonly string[] {
  const children: unknown[] = []
  for (const [key, value] of Object.entries(node)) {
    const isName =
      (node.type === 'MemberExpression' && key === 'property' && !node.computed) ||
      (node.type === 'Property' && key === 'key' && !node.computed && !node.shorthand) ||
      ((node.type === 'MethodDefinition' || node.type === 'PropertyDefinition') &&
        key === 'key' &&
        !node.computed) ||
      /^Import.*Specifier$/.test(node.type) ||
      (node.type === 'ExportSpecifier' && key === 'exported')
    if (!isName) children.push(...(Array.isArray(value) ? value : [value]))
  }
  return children.flatMap((child) => (isIdentifier(child) ? [child.name] : []))
}

function isIdentifier(value: unknown): value is { readonly name: string } {
  return (
    typeof value === 'object' &&
    value !== null &&
    'type' in value &&
    value.type === 'Identifier' &&
    'name' in value
  )
}

/** Blanks keep every later position. */
function withoutUnused(code: string, node: ImportDeclaration, used: ReadonlySet<string>): string {
  const kept = node.specifiers.filter(({ local }) => used.has(local.name))
  if (kept.length === node.specifiers.length) return code
  const clauses = [
    ...kept.flatMap(({ type, local }) => (type === 'ImportDefaultSpecifier' ? [local.name] : [])),
    ...kept.flatMap(({ type, local }) =>
      type === 'ImportNamespaceSpecifier' ? [`* as ${local.name}`] : [],
    ),
  ]
  const named = kept.filter(({ type }) => type === 'ImportSpecifier')
  if (named.length > 0) {
    clauses.push(`{${named.map(({ start, end }) => code.slice(start, end)).join(',')}}`)
  }
  const text = kept.length === 0 ? '' : `import ${clauses.join(',')} from ${node.source.raw};`
  const breaks = code.slice(node.start, node.end).replace(/[^\n]/g, '')
  return `${code.slice(0, node.start)}${(text + breaks).padEnd(node.end - node.start)}${code.slice(node.end)}`
}
