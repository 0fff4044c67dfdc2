/**
 * Statements for a database that is distributed by Project (docs/scale.md). It sends a statement as it stands to the
 * server that has the rows, if it sees when it plans that all tables of the statement have rows of that Project. One
 * server takes the same statements in words that keep values from its planner, so that one plan serves all of them,
 * and indexes from tests that others imply: here those words are taken away.
 */
import { Cache } from '../core/cache.ts'
import type { Statement } from './statement.ts'

const plain = new Cache<string, string>({
  name: 'distributed-statements',
  max: 2_000_000,
  size: textLength,
})

/** One statement for each Project that it is about, in such words. */
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
  // Values behind a select.
  [/\(select (\$\d+(?:::[\w"]+(?:\[\])?)?)\)/g, '$1'],
  // A Project that is tested on a row alone, by itself or with what else is tested there.
  [/\(((?:\w+\.)?project = \$\d+(?:::int)*)\) is true/g, '$1'],
  [/\(((?:\w+\.)?project = \$\d+(?:::int)*)\s+and /g, '$1 and $&'],
  // A walk of an index begins at a place, which names the Project.
  [/\((\w+)\.project, [^()]*\) >=? \((\$\d+)(?:::int)+,[^()]*\)/g, '$& and $1.project = $2::int'],
  // Rows of a table that the coordinator has are looked up as a list.
  [
    /join export_member m on (m\.job = \$\d+(?:::uuid)?) and m\.reference = c ->> 'reference' and ([^()]*)\)/g,
    "where c ->> 'reference' in (select m.reference from export_member m where $1 and $2))",
  ],
  // All that is open on the coordinator may write elsewhere.
  [/ and backend_\w+ is not null/g, ''],
  // Citus takes all columns for the type of the first one, and reads them so without a word, but where they are counted.
  [/(?<!\*\s+from )(\bunnest\([^()]*,[^()]*\))(?=\s+(?:as )?\w+ ?\()/g, '$1 with ordinality'],
  // Nobody learns from the statement that nobody waits.
  [/not exists \(select from active_subscription a where a\.project = w\.project\)/g, 'false'],
  // Rows that one server hands to another have columns.
  [/\bselect from\b/g, 'select 1 from'],
]

function textLength(text: string): number {
  return text.length
}
