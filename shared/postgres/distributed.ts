/**
 * Rewrites statements for a database distributed by Project (docs/scale.md): Citus routes a statement to one server
 * only if the planner sees one Project on every table.
 */
import { Cache } from '../core/cache.ts'
import type { Statement } from './statement.ts'

const plain = new Cache<string, string>({
  name: 'distributed-statements',
  max: 2_000_000,
  size: textLength,
})

export function distributed(statement: Statement): readonly Statement[] {
  const text = plain.get(statement.text) ?? inPlainWords(statement.text)
  plain.set(statement.text, text)
  const projects = [...new Set(statement.projects)]
  if (projects.length === 0) return [{ ...statement, text }]
  const { name, values } = statement
  const place = `$${values.length + 1}`
  const of = text.replaceAll(
    OF_LIST,
    (_, table) => `${table}project = ${place} and x.project = ${place}`,
  )
  return projects.map((project) => ({
    ...statement,
    ...(name === undefined ? {} : { name: `${name}-of` }),
    text: of,
    values: [...values, project],
  }))
}

const OF_LIST = /(?<=(?:where|and|on) )((?:\w+\.)?)project = x\.project/g

function inPlainWords(text: string): string {
  return RULES.reduce((said, [words, instead]) => said.replaceAll(words, instead), text)
}

const RULES: readonly (readonly [RegExp, string])[] = [
  // Values hidden from the planner by a select.
  [/\(select (\$\d+(?:::[\w"]+(?:\[\])?)?)\)/g, '$1'],
  // A Project test that is isolated from the planner.
  [/\(((?:\w+\.)?project = \$\d+(?:::int)*)\) is true/g, '$1'],
  [/\(((?:\w+\.)?project = \$\d+(?:::int)*)\s+and /g, '$1 and $&'],
  // An index walk starts at a row key, which includes the Project.
  [/\((\w+)\.project, [^()]*\) >=? \((\$\d+)(?:::int)+,[^()]*\)/g, '$& and $1.project = $2::int'],
  // Rows of a coordinator table are looked up as a list.
  [
    /join export_member m on (m\.job = \$\d+(?:::uuid)?) and m\.reference = c ->> 'reference' and ([^()]*)\)/g,
    "where c ->> 'reference' in (select m.reference from export_member m where $1 and $2))",
  ],
  // Any open coordinator transaction may write on other servers.
  [/ and backend_\w+ is not null/g, ''],
  // Citus silently reads all columns with the type of the first one, except with ordinality.
  [/(?<!\*\s+from )(\bunnest\([^()]*,[^()]*\))(?=\s+(?:as )?\w+ ?\()/g, '$1 with ordinality'],
  // Waiting subscriptions cannot be detected in this statement.
  [/not exists \(select from active_subscription a where a\.project = w\.project\)/g, 'false'],
  // Rows passed between servers need at least one column.
  [/\bselect from\b/g, 'select 1 from'],
]

function textLength(text: string): number {
  return text.length
}
