/** `Type/$csv`: a search as a CSV table. */
import { Readable } from 'node:stream'
import { badRequest } from '../../core/errors.ts'
import { yieldTurn } from '../../core/yielding.ts'
import { searchParameter } from '../../fhir/definitions.ts'
import { isDecimal, parseJson } from '../../fhir/json.ts'
import { asArray, isObject, type Resource } from '../../fhir/resource.ts'
import { compileExpression, type Leg, type Walk } from '../../fhirpath/extract.ts'
import { readPreferences } from '../../request/negotiate.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { parseCallerSearch, resolved } from '../../rest/criteria.ts'
import type { SearchRequest } from '../../search/language/search-request.ts'
import { present } from '../../store/rows/rows.ts'

const DEFAULT_ROWS = 1000
const MOST_ROWS = 100_000
const PAGE = 1000
const MOST_FIELDS = 200
/** Marks the text as UTF-8 for spreadsheets. */
const BYTE_ORDER_MARK = '\uFEFF'

export const csv: Operation = {
  name: 'csv',
  on: [{ level: 'type' }],
  methods: ['GET'],
  onlyReads: true,
  text: {
    summary: 'Search as CSV',
    query: { _fields: 'text: A comma list of columns', _count: 'whole: Rows' },
    answer: 'text/csv',
  },
  ownFormat: true,
  async run(call) {
    const { request, type = '' } = call
    if (type === 'Binary') throw badRequest('Cannot search on Binary resource type')
    const fields = (request.query.get('_fields') ?? '').split(',').filter((name) => name !== '')
    if (fields.length === 0) throw badRequest('Missing _fields parameter', '_fields')
    if (fields.length > MOST_FIELDS) {
      throw badRequest(`_fields may name ${MOST_FIELDS} fields`, '_fields')
    }
    const columns = fields.map((field) => compileColumn(type, field))
    const query = new URLSearchParams(request.query)
    query.delete('_count')
    // Always CSV: browsers that follow a link accept HTML.
    const headers = { ...request.headers, accept: undefined }
    const { handling } = readPreferences({ ...request, headers })
    const search = await resolved(call, parseCallerSearch(call, type, query, handling))
    const table = pagesOf(call, search, parseRowCount(request.query.get('_count')), columns)
    // Errors must precede the table.
    const first = await table.next()
    const head = `${BYTE_ORDER_MARK}${csvLine(fields)}`
    const start = first.done ? head : `${head}${first.value.text}`
    const isWhole = first.done || !first.value.hasNext
    return {
      status: 200,
      headers: {
        'Content-Type': 'text/csv; charset=utf-8',
        'Content-Disposition': 'attachment; filename=export.csv',
      },
      ...(isWhole
        ? { body: start }
        : { body: undefined, open: async () => Readable.from(chunksOf(start, table)) }),
    }
  },
}

interface TablePage {
  readonly text: string
  readonly hasNext: boolean
}

/** Pages through the rows, so that the table is never in memory. */
async function* pagesOf(
  { services, principal }: OperationCall,
  search: SearchRequest,
  rows: number,
  columns: readonly ((resource: Resource) => string)[],
): AsyncGenerator<TablePage, undefined> {
  let { cursor, offset } = search
  for (let left = rows; left > 0; ) {
    const count = Math.min(left, PAGE)
    const page = await services.repository.search(principal, { ...search, count, cursor, offset })
    left -= page.versions.length
    const lines: string[] = []
    for (const version of page.versions) {
      const resource = parseJson(present(version, principal, false)) as Resource
      lines.push(csvLine(columns.map((column) => column(resource))))
      await yieldTurn()
    }
    const hasNext = page.next !== undefined && left > 0
    yield { text: lines.join(''), hasNext }
    if (!hasNext) return
    cursor = page.next
    offset = 0
  }
}

async function* chunksOf(start: string, rest: AsyncIterable<TablePage>): AsyncGenerator<Buffer> {
  yield Buffer.from(start)
  for await (const { text } of rest) yield Buffer.from(text)
}

function parseRowCount(text: string | null): number {
  if (text === null || text === '') return DEFAULT_ROWS
  if (!/^\d{1,9}$/.test(text)) throw badRequest(`Invalid _count: ${text}`, '_count')
  return Math.min(Number(text), MOST_ROWS)
}

type Column = (resource: Resource) => string

/** Compiles an element path (`name.family`) or a search parameter (`address-city`). Errors: 400 for neither. */
function compileColumn(type: string, field: string): Column {
  const legs = compileLegs(type, field)
  if (legs === undefined) throw badRequest(`Unknown field: ${field.slice(0, 100)}`, '_fields')
  const walks = legs.map((leg): Walk<string[]> => {
    return leg.bind((value, into) => {
      const text = formatValue(value, leg.type)
      if (text !== '') into.push(text)
    })
  })
  return (resource) => {
    const texts: string[] = []
    for (const walk of walks) walk(resource, texts)
    return [...new Set(texts)].join('; ')
  }
}

function csvLine(cells: readonly string[]): string {
  return `${cells.map(csvCell).join(',')}\r\n`
}

function compileLegs(type: string, field: string): readonly Leg[] | undefined {
  const expression = searchParameter(type, field)?.expression
  const path = /^[a-zA-Z]\w*(\.[a-zA-Z]\w*)*$/.test(field) ? `${type}.${field}` : expression
  for (const candidate of [path, expression]) {
    if (candidate === undefined) continue
    try {
      return compileExpression(type, candidate)
    } catch {
      // Not an element: may be a search parameter.
    }
  }
  return undefined
}

/** Leading characters that make spreadsheets evaluate a cell as a formula. */
const FORMULA = /^[=+\-@\t\r]/

function csvCell(text: string): string {
  const safe = FORMULA.test(text) ? `'${text}` : text
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}

function formatValue(value: unknown, type: string): string {
  if (value === undefined || value === null) return ''
  if (isDecimal(value)) return value.toString()
  if (!isObject(value)) return Array.isArray(value) ? '' : String(value)
  const of = (name: string) => formatValue(value[name], '')
  const list = (name: string) => {
    const items = value[name]
    return Array.isArray(items) ? items.map((item) => formatValue(item, '')) : []
  }
  const words = (...parts: readonly string[]) => parts.filter((part) => part !== '').join(' ')
  switch (type) {
    case 'HumanName':
      return (
        of('text') || words(...list('prefix'), ...list('given'), of('family'), ...list('suffix'))
      )
    case 'Address': {
      const parts = [...list('line'), of('city'), of('state'), of('postalCode'), of('country')]
      return of('text') || parts.filter((part) => part !== '').join(', ')
    }
    case 'CodeableConcept': {
      const [coding] = asArray(value.coding)
      return of('text') || formatValue(coding, 'Coding')
    }
    case 'Coding':
      return of('display') || of('code')
    case 'Reference':
      return of('display') || of('reference')
    case 'Identifier':
    case 'ContactPoint':
      return of('value')
    case 'Period':
      return words(of('start'), '–', of('end'))
    case 'Annotation':
      return of('text')
    default:
      if ('value' in value)
        return words(of('comparator'), of('value'), of('unit') || of('currency'))
      return JSON.stringify(value)
  }
}
