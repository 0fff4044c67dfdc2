/**
 * The FHIRPath of SearchParameter expressions → a tree. Not the whole language: what the published
 * parameters use (paths, `|`, `as`, `is`, `=`, `!=`, `and`, `or`, functions, `[n]`, literals).
 */
export type Expression =
  | { readonly kind: 'member'; readonly of: Expression | undefined; readonly name: string }
  | {
      readonly kind: 'call'
      readonly of: Expression | undefined
      readonly name: string
      readonly args: readonly Expression[]
    }
  | { readonly kind: 'index'; readonly of: Expression; readonly index: number }
  | {
      readonly kind: 'type'
      readonly op: 'as' | 'is'
      readonly of: Expression
      readonly type: string
    }
  | {
      readonly kind: 'binary'
      readonly op: '=' | '!=' | 'and' | 'or'
      readonly left: Expression
      readonly right: Expression
    }
  | { readonly kind: 'union'; readonly parts: readonly Expression[] }
  | { readonly kind: 'literal'; readonly value: string | number | boolean }

const TOKEN = /\s*(?:('(?:[^'\\]|\\.)*')|(\d+(?:\.\d+)?)|([A-Za-z_]\w*|`[^`]+`)|(!=|[|=().,[\]]))/y

/** Throws an Error that names the expression when it is outside the subset. */
export function parsePath(text: string): Expression {
  const parser = new Parser(text)
  const expression = parser.or()
  parser.end()
  return expression
}

class Parser {
  readonly #text: string
  readonly #tokens: string[] = []
  #at = 0

  constructor(text: string) {
    this.#text = text
    TOKEN.lastIndex = 0
    const trimmed = text.trim()
    while (TOKEN.lastIndex < trimmed.length) {
      const found = TOKEN.exec(trimmed)
      if (!found) this.#fail()
      this.#tokens.push(found[0].trim())
    }
  }

  end(): void {
    if (this.#at < this.#tokens.length) this.#fail()
  }

  or(): Expression {
    let left = this.#and()
    while (this.#take('or')) left = { kind: 'binary', op: 'or', left, right: this.#and() }
    return left
  }

  #and(): Expression {
    let left = this.#equality()
    while (this.#take('and')) left = { kind: 'binary', op: 'and', left, right: this.#equality() }
    return left
  }

  #equality(): Expression {
    const left = this.#union()
    for (const op of ['=', '!='] as const) {
      if (this.#take(op)) return { kind: 'binary', op, left, right: this.#union() }
    }
    return left
  }

  #union(): Expression {
    const first = this.#typed()
    const parts = [first]
    while (this.#take('|')) parts.push(this.#typed())
    return parts.length === 1 ? first : { kind: 'union', parts }
  }

  #typed(): Expression {
    const of = this.#chain()
    for (const op of ['as', 'is'] as const) {
      if (this.#take(op)) return { kind: 'type', op, of, type: this.#name() }
    }
    return of
  }

  #chain(): Expression {
    let value = this.#primary()
    for (;;) {
      if (this.#take('.')) value = this.#invocation(value)
      else if (this.#take('[')) {
        const index = Number(this.#next())
        if (!Number.isInteger(index)) this.#fail()
        this.#expect(']')
        value = { kind: 'index', of: value, index }
      } else return value
    }
  }

  #primary(): Expression {
    if (this.#take('(')) {
      const inner = this.or()
      this.#expect(')')
      return inner
    }
    const token = this.#peek() ?? ''
    if (token.startsWith("'")) {
      this.#at++
      return { kind: 'literal', value: token.slice(1, -1).replace(/\\(.)/g, '$1') }
    }
    if (/^\d/.test(token)) return { kind: 'literal', value: Number(this.#next()) }
    if (token === 'true' || token === 'false') {
      return { kind: 'literal', value: this.#next() === 'true' }
    }
    return this.#invocation(undefined)
  }

  #invocation(of: Expression | undefined): Expression {
    const name = this.#name()
    if (!this.#take('(')) return { kind: 'member', of, name }
    const args: Expression[] = []
    while (!this.#take(')')) {
      if (args.length > 0) this.#expect(',')
      args.push(this.or())
    }
    return { kind: 'call', of, name, args }
  }

  #name(): string {
    const token = this.#next()
    if (!/^[A-Za-z_`]/.test(token)) this.#fail()
    return token.replace(/`/g, '')
  }

  #peek(): string | undefined {
    return this.#tokens[this.#at]
  }

  #next(): string {
    return this.#tokens[this.#at++] ?? this.#fail()
  }

  #take(token: string): boolean {
    if (this.#peek() !== token) return false
    this.#at++
    return true
  }

  #expect(token: string): void {
    if (!this.#take(token)) this.#fail()
  }

  #fail(): never {
    throw new Error(`Not a search expression: ${this.#text}`)
  }
}
