module github.com/weftnet/weft

go 1.26.0
