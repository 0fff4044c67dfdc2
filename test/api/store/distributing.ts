/**
 * Detects statements that a planner for tables distributed by Project would reject: a minimal SQL
 * parser of the large tables, their aliases and parentheses.
 */

const BY_PROJECT = [
  ...['version', 'resource', 'unique_key', 'idx_string', 'idx_range', 'code', 'resource_text'],
  'indexed_parameter',
]
const TABLE = new RegExp(
  `\\b(?:from|join|update|using)\\s+(${BY_PROJECT.join('|')})\\b(?:\\s+(?:as\\s+)?(?!(?:where|set|using|on|order|limit|cross|join|left|group)\\b)(\\w+))?`,
  'g',
)

interface Piece {
  readonly text: string
  readonly isBody: boolean
}

/** Returns the reason for a rejection; undefined if there is none. */
export function findCitusRejection(statement: string): string | undefined {
  const text = statement
    .replace(/'(?:[^']|'')*'/g, "''")
    .replace(/\s+/g, ' ')
    .toLowerCase()
  if (/\(select \$\d+(?:::\w+(?:\[\])?)?\)/.test(text)) return 'a value behind a select'
  if (/(?<!\* from )\bunnest\([^()]*,[^()]*\) (?:as )?\w+ ?\(/.test(text))
    return 'columns taken for the first'
  if (/join export_member [^()]*->>/.test(text)) return 'a crash of the server'
  if (/\bselect from\b/.test(text)) return 'rows without a column'
  if (/\bbackend_xid is not null\b/.test(text)) return 'only transactions of the coordinator'
  for (const piece of splitQueryBlocks(text)) {
    if (/lateral \(#local\)/.test(piece.text) && /lateral \(#large\)/.test(piece.text))
      return 'a join of tables of the coordinator with distributed tables'
    const tables = tablesIn(piece.text)
    const scattered = tables.filter((name) => !isOfOne(piece.text, name))
    if (scattered.length === 0) continue
    const said = piece.text.trim().slice(0, 60)
    if (/\bfor (?:update|share)\b/.test(piece.text)) return `FOR UPDATE of many Projects: ${said}`
    if (/\b(?:limit|offset) \(select/.test(text)) return `a subquery in LIMIT: ${said}`
    if (/\bctid\b/.test(piece.text)) return `rows by their place: ${said}`
    if (/\bwith recursive\b/.test(text)) return `a recursion over many Projects: ${said}`
    if (!piece.isBody) return `a subquery without its Project: ${said}`
    if (/\blateral\b/.test(piece.text)) return `LATERAL of many Projects: ${said}`
    if (
      /\b(?:clock_timestamp|gen_random_uuid|random)\b/.test(piece.text) &&
      /^ ?(?:update|delete)/.test(piece.text)
    ) {
      return `a volatile function in a change of many Projects: ${said}`
    }
  }
  return undefined
}

/** Returns the aliases of the tables in the statement. */
function tablesIn(text: string): readonly string[] {
  return Array.from(text.matchAll(TABLE), ([, table = '', name]) => name ?? table)
}

function isOfCoordinator(text: string): boolean {
  return /\bfrom export_\w+/.test(text)
}

/** Returns true if the Project equals a constant, directly or through another table. */
function isOfOne(text: string, name: string, seen: readonly string[] = []): boolean {
  const own = `(?:\\b${name}\\.)`
  if (new RegExp(`${own}project = \\(*(?:\\$?\\d+|''::int)`).test(text)) return true
  if (/(?<![\w.])project = \(*(?:\$?\d+|'')/.test(text) && tablesIn(text).length === 1) return true
  const others = [
    ...Array.from(
      text.matchAll(new RegExp(`${own}project = (\\w+)\\.project`, 'g')),
      ([, x = '']) => x,
    ),
    ...Array.from(
      text.matchAll(new RegExp(`(\\w+)\\.project = ${name}\\.project`, 'g')),
      ([, x = '']) => x,
    ),
    ...(/using \(\)/.test(text) ? tablesIn(text) : []),
  ]
  return others.some(
    (other) => other !== name && !seen.includes(other) && isOfOne(text, other, [...seen, name]),
  )
}

/** Splits the statement into query blocks: the statement itself, `as (…)` bodies and derived tables. */
function splitQueryBlocks(text: string): readonly Piece[] {
  const open: { text: string; isBody: boolean }[] = [{ text: '', isBody: true }]
  const found: Piece[] = []
  for (const letter of text) {
    const top = open.at(-1)
    if (top === undefined) break
    if (letter === '(') {
      open.push({ text: '', isBody: top.isBody && /\bas (?:materialized )?$/.test(top.text) })
      top.text += '('
    } else if (letter === ')' && open.length > 1) {
      found.push(top)
      open.pop()
      const under = open.at(-1)
      // Short parentheses are values and lists, and stay.
      const isShort = top.text.length <= 60 && !/select/.test(top.text)
      const mark = isOfCoordinator(top.text)
        ? '#local'
        : tablesIn(top.text).length > 0
          ? '#large'
          : ''
      if (under) under.text += isShort ? `${top.text})` : `${mark})`
    } else top.text += letter
  }
  return [...found, ...open]
}
