/**
 * Citus, with tables distributed by Project (docs/scale.md). It sends a statement to one server only if the planner
 * sees the number of one Project on every table.
 */
import type { Dialect } from './postgres-dialect.ts'

export const CITUS: Dialect = {
  // A hidden value makes Citus ask all servers, or reject the statement.
  value: (placeholder) => placeholder,
  // Without ordinality Citus reads all columns with the type of the first one, silently.
  unnest: (...columns) =>
    `unnest(${columns.join(', ')})${columns.length > 1 ? ' with ordinality' : ''}`,
  // Citus finds the server only by a plain comparison.
  projectEquals: (alias, project, tests) =>
    `${alias}.project = ${project}${tests === undefined ? '' : ` and (${tests}) is true`}`,
  // A Project taken from a list names no server. `run` appends the Project as the last value.
  projectOfList: (column, count) => `${column} = $${count + 1} and x.project = $${count + 1}`,
  // A comparison of rows names no server.
  walkFrom: (columns, from, key) =>
    `(${columns.join(', ')}) ${from} (${key.join(', ')}) and ${columns[0]} = ${key[0]}`,
  // A transaction of the coordinator writes on other servers and has no transaction id itself.
  mayHaveWritten: 'true',
  async run(statement, send) {
    const { inSteps, perProject, values = [] } = statement
    if (inSteps !== undefined) {
      return (await inSteps({ query: (one) => CITUS.run(one, send) })) as never[]
    }
    if (perProject === undefined) return send(statement)
    const sent = [...new Set(perProject)].map((project) =>
      send<never>({ ...statement, values: [...values, project] }),
    )
    return (await Promise.all(sent)).flat()
  },
}
