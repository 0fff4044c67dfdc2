/** The dialect in which this process writes SQL. */
import { type Dialect, POSTGRES } from './postgres-dialect.ts'

export let dialect: Dialect = POSTGRES

/** Called once, when a process opens the repository and before it writes other SQL. */
export function chooseDialect(chosen: Dialect): void {
  dialect = chosen
}

/** Keeps the text of a fixed statement, which is written when first sent. */
export function fixedSql(write: () => string): () => string {
  let kept: { readonly of: Dialect; readonly text: string } | undefined
  return () => {
    if (kept?.of !== dialect) kept = { of: dialect, text: write() }
    return kept.text
  }
}
